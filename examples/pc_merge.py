"""A node of one's own with two inputs, in a network that branches and merges again.

Two Layers read the same activity: one sees the left half of an image, the other the right half. `Merge` predicts from
both. Its rule is that of a Layer, put together from the same parts: a clock, `functional`, an optimizer and a relaxer.
"""

import argparse
import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import mujou_pc as pc
from mujou_pc.msg import Activity, activity_spec, gradient_spec
from mujou_pc.runtime import DictSpec, MultiPort, Network, Node, Port, TensorSpec

BATCH = 32
PERIOD = 0.002
TAU = pc.TimeConstants(h=2 * PERIOD, lam=PERIOD, r=2 * PERIOD)
LEARN_INTERVAL = 6 * PERIOD
ADAMW = pc.optim.AdamW(
    tau=LEARN_INTERVAL / 2e-3,
    tau_m=-LEARN_INTERVAL / math.log(0.9),
    tau_v=-LEARN_INTERVAL / math.log(0.999),
)


class Merge(Node):
    """Predicts from two activities of shape (B, M) and (B, N), side by side."""

    def __init__(self, module: nn.Module, left: DictSpec, right: DictSpec, *, learn_interval: float) -> None:
        super().__init__(period=TAU.period)
        h_left, h_right, y = left.fields["h"], right.fields["h"], left.fields["y"]
        self.widths = [h_left.shape[1], h_right.shape[1]]
        self.left: Port[Activity, Tensor] = Port(receives=left, sends=gradient_spec(h_left))
        self.right: Port[Activity, Tensor] = Port(receives=right, sends=gradient_spec(h_right))
        with torch.no_grad():
            mu = TensorSpec(module(torch.cat([h_left.zero(), h_right.zero()], 1)).shape, h_left.dtype)
        self.spec = activity_spec(mu, y)
        self.next: MultiPort[Tensor, Activity] = MultiPort(receives=gradient_spec(mu), sends=self.spec)
        # Whatever is Stateful, a module or registered is saved with the run.
        self.module = module
        self.clock = pc.clock.LearnClock.of(TAU, learn_interval=learn_interval)
        self.r = self.register_state("r", mu.zero())
        self.lam = self.register_state("lam", mu.zero())
        self.relaxer = pc.relax.Euler().bind(self.r)
        self.optimizer = ADAMW.bind(tuple(module.parameters()))

    def on_update(self, dt: float) -> None:
        left, right = self.left.read(), self.right.read()
        # The branches may differ in length: a sample is here once both have brought it.
        later = min(left, right, key=lambda activity: activity["time"])
        tick = self.clock.tick(dt, later["time"], self.timer.now())
        if tick.new:
            self.r[later["reset"]] = 0
            self.lam[later["reset"]] = 0
            self.relaxer.reset_(later["reset"])
        learn = tick.learn and bool(later["mask"].any())
        mu, g_in, g_theta = pc.functional.vjp(
            self.module,
            torch.cat([left["h"], right["h"]], 1),
            lambda mu: self.r + self.lam,
            tuple(self.module.parameters()) if learn else (),
            later["mask"],
        )
        g_left, g_right = g_in.split(self.widths, 1)
        self.left.send(g_left)
        self.right.send(g_right)
        g = torch.stack(self.next.read()).sum(0)
        pc.functional.relax_(self.r, self.lam, g, dt=tick.dt, tau=TAU, relaxer=self.relaxer)
        self.next.send({**later, "h": mu})
        if learn:
            self.optimizer.step_([g / len(mu) for g in g_theta], tick.elapsed)


class Half(nn.Module):
    """A linear map of the left or the right half of an image."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns
        self.linear = nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x[:, :, self.columns].flatten(1)))


def build(dtype: torch.dtype, learn_interval: float) -> tuple[dict[str, Node], Network]:
    """The nodes by name, and the network of them."""
    x, y = TensorSpec((BATCH, 8, 8), dtype), TensorSpec((BATCH,), torch.int64)
    settings = {"tau": TAU, "optimizer": ADAMW, "learn_interval": learn_interval}
    source = pc.Input(x, y, period=TAU.period)
    left = pc.Layer(Half(slice(0, 4)).to(dtype), source.spec, **settings)
    right = pc.Layer(Half(slice(4, 8)).to(dtype), source.spec, **settings)
    merged = nn.Sequential(nn.Linear(128, 64), nn.ReLU()).to(dtype)
    merge = Merge(merged, left.spec, right.spec, learn_interval=learn_interval)
    output = pc.Output(nn.Linear(64, 10).to(dtype), merge.spec, loss=pc.loss.CrossEntropyLoss(), **settings)
    nodes = {"source": source, "left": left, "right": right, "merge": merge, "output": output}
    joins = [
        (source.next, left.prev),
        (source.next, right.prev),
        (left.next, merge.left),
        (right.next, merge.right),
        (merge.next, output.prev),
    ]
    return nodes, Network(nodes, connect=joins, ports={"prev": source.prev, "next": output.next})


def credit_error(dtype: torch.dtype) -> float:
    """The largest relative difference between the errors of the nodes at rest and backpropagation's credit."""
    torch.manual_seed(0)
    nodes, network = build(dtype, learn_interval=math.inf)
    x, y = torch.rand(BATCH, 8, 8, dtype=dtype), torch.randint(0, 10, (BATCH,))
    left, right, merge, output = (copy.deepcopy(nodes[n].module) for n in ("left", "right", "merge", "output"))
    h = {"left": left(x), "right": right(x)}
    h["merge"] = merge(torch.cat([h["left"], h["right"]], 1))
    loss = F.cross_entropy(output(h["merge"]), y, reduction="sum")
    credit = {name: -grad for name, grad in zip(h, torch.autograd.grad(loss, list(h.values())), strict=True)}
    with pc.testing.run(network) as run:
        pc.show(run, {"x": x, "y": y}, seconds=20 * PERIOD)
    return max(
        float((nodes[name].r + nodes[name].lam - wanted).abs().max() / wanted.abs().max())
        for name, wanted in credit.items()
    )


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    print(f"largest difference from backpropagation's credit: {credit_error(torch.float64):.1e} of it")
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 8, 8), torch.tensor(y)
    _, network = build(torch.float32, LEARN_INTERVAL)
    correct = []
    with (pc.run if arguments.threads else pc.testing.run)(network) as run:
        for _ in tqdm(range(arguments.batches), unit="batch"):
            rows = torch.randint(len(x), (BATCH,))
            prediction = pc.show(run, {"x": x[rows], "y": y[rows]}, seconds=8 * PERIOD)
            correct.append(float((prediction["y_hat"].argmax(1) == y[rows]).double().mean()))
    tenth = max(1, len(correct) // 10)
    print(f"accuracy before learning, first and last tenth: {average(correct[:tenth])} and {average(correct[-tenth:])}")


def average(values: list[float]) -> str:
    return f"{sum(values) / len(values):.1%}"


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parse() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("--threads", action="store_true", help="in background threads, not on a virtual timer")
    parser.add_argument("--smoke", action="store_true", help="a few batches only")
    parser.add_argument("--batches", type=int, default=400, help="length of the stream (default 400)")
    arguments = parser.parse_args()
    if arguments.batches < 1:
        parser.error(f"--batches must be at least 1, but got {arguments.batches}")
    if arguments.smoke:
        arguments.batches = 20
    return arguments


if __name__ == "__main__":
    main()
