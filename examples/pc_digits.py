"""Digits shown as a stream to a chain that learns while it runs.

Each batch is predicted before anything has learned from it, so the accuracy in the progress bar is honest from the
first one on. In the end the same modules, trained by backpropagation on the same samples, stand beside it.
"""

import argparse
import copy
import math
import time
from collections import deque
from dataclasses import dataclass
from statistics import mean

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

import mujou_pc as pc
from mujou_pc.runtime import TensorSpec

BATCH = 32
PERIOD = 0.002  # seconds between two updates of a node
LEARN_INTERVAL = 6 * PERIOD  # two Layers need up to 4 periods
SHOWN = 7 * PERIOD
RATE = 1e-3  # of AdamW, per learning step
TAU = pc.TimeConstants(h=2 * PERIOD, lam=PERIOD, r=2 * PERIOD)
ADAMW = pc.optim.AdamW(
    tau=LEARN_INTERVAL / RATE,
    tau_m=-LEARN_INTERVAL / math.log(0.9),
    tau_v=-LEARN_INTERVAL / math.log(0.999),
)


@dataclass(frozen=True)
class Result:
    """How one way of learning did."""

    name: str
    test_accuracy: float
    prequential: list[float]
    seconds: float


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    train, test = digits(arguments.seed)
    stream = [rows for _ in range(arguments.epochs) for rows in torch.randperm(len(train[0])).split(BATCH)]
    stream = [rows for rows in stream if len(rows) == BATCH]
    modules = make_modules()
    reference = nn.Sequential(*copy.deepcopy(modules))
    start = pc.testing.run if arguments.virtual else pc.run

    ours = learn_while_running(start, modules, train, test, stream)
    theirs = learn_by_backpropagation(reference, train, test, stream)
    cosines = gradient_cosines(start, modules, (train[0][:BATCH], train[1][:BATCH]))

    print(f"\n{'':24}{'test':>8}{'last 20 %':>12}{'samples':>10}{'seconds':>10}")
    for result in (ours, theirs):
        late = mean(result.prequential[-len(stream) // 5 :])
        print(f"{result.name:24}{result.test_accuracy:8.1%}{late:12.1%}{len(stream) * BATCH:10}{result.seconds:10.1f}")
    print("\ncosine of the gradient with backpropagation's:")
    for i, cosine in enumerate(cosines):
        print(f"  module {i}  {cosine:.6f}")
    plot([ours, theirs], cosines, arguments.plot)
    print(f"\nplot: {arguments.plot}")


def learn_while_running(start, modules, train, test, stream) -> Result:
    chain = make_chain(modules, LEARN_INTERVAL)
    x, y = train
    prequential, recent = [], deque(maxlen=20)
    began = time.perf_counter()
    with start(chain) as run, tqdm(stream, unit="batch") as bar:
        for rows in bar:
            prediction = pc.show(run, {"x": x[rows], "y": y[rows]}, seconds=SHOWN)
            prequential.append(accuracy(prediction["y_hat"], y[rows]))
            recent.append(prequential[-1])
            bar.set_postfix_str(f"accuracy before learning {mean(recent):.1%}")
        seconds = time.perf_counter() - began
        correct = accuracy(torch.cat([predict(run, rows) for rows in padded(test[0])])[: len(test[0])], test[1])
    return Result("chain that runs", correct, prequential, seconds)


def predict(run: pc.runtime.Run, x: torch.Tensor) -> torch.Tensor:
    """The prediction with every mask False: the chain relaxes, and no weight moves."""
    none = torch.zeros(BATCH, dtype=torch.bool)
    sample = {"x": x, "y": torch.zeros(BATCH, dtype=torch.int64), "mask": none}
    return pc.show(run, sample, seconds=SHOWN)["y_hat"]


def learn_by_backpropagation(model, train, test, stream) -> Result:
    x, y = train
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), weight_decay=1e-2)
    prequential, began = [], time.perf_counter()
    for rows in stream:
        y_hat = model(x[rows])
        prequential.append(accuracy(y_hat, y[rows]))
        optimizer.zero_grad()
        F.cross_entropy(y_hat, y[rows]).backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        return Result("backpropagation", accuracy(model(test[0]), test[1]), prequential, seconds)


def gradient_cosines(start, modules, sample) -> list[float]:
    """For each module, the cosine between the gradient the chain would learn from and backpropagation's."""
    x, y = sample
    chain = make_chain(modules, learn_interval=math.inf)
    with start(chain) as run:
        pc.show(run, {"x": x, "y": y}, seconds=20 * PERIOD)
        run.pause()
        errors = [(layer.r + layer.lam).clone() for layer in chain.layers]
    F.cross_entropy(nn.Sequential(*modules)(x), y, reduction="sum").backward()
    cosines, h = [], x
    for i, module in enumerate(modules):
        params = tuple(module.parameters())
        if i < len(errors):
            h, _, grads = pc.functional.vjp(module, h, lambda _, error=errors[i]: error, params)
        else:
            _, _, grads = pc.functional.loss_vjp(module, h, pc.loss.CrossEntropyLoss(), y, None, params)
        ours = torch.cat([grad.flatten() for grad in grads])
        theirs = torch.cat([param.grad.flatten() for param in params])
        cosines.append(float(torch.cosine_similarity(ours, theirs, 0)))
    return cosines


def make_modules() -> list[nn.Module]:
    return [
        nn.Sequential(nn.Linear(64, 128), nn.ReLU()),
        nn.Sequential(nn.Linear(128, 128), nn.ReLU()),
        nn.Linear(128, 10),
    ]


def make_chain(modules: list[nn.Module], learn_interval: float) -> pc.Chain:
    return pc.Chain(
        modules,
        x=TensorSpec((BATCH, 64)),
        y=TensorSpec((BATCH,), torch.int64),
        loss=pc.loss.CrossEntropyLoss(),
        tau=TAU,
        optimizer=ADAMW,
        learn_interval=learn_interval,
    )


def digits(seed: int):
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=360, random_state=seed, stratify=y)
    return tuple(
        (torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)) for x, y in ((x_train, y_train), (x_test, y_test))
    )


def padded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.pad(x, (0, 0, 0, -len(x) % BATCH)).split(BATCH)


def accuracy(y_hat: torch.Tensor, y: torch.Tensor) -> float:
    return float((y_hat.argmax(1) == y).double().mean())


def plot(results: list[Result], cosines: list[float], path: str) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(2, 1), layout="constrained")
    for result in results:
        smooth = [mean(result.prequential[max(0, i - 20) : i + 1]) for i in range(len(result.prequential))]
        samples = [BATCH * i for i in range(len(smooth))]
        left.plot(samples, smooth, label=f"{result.name}, test {result.test_accuracy:.1%}")
    left.set(xlabel="samples seen", ylabel="accuracy before learning", ylim=(0, 1.02))
    left.legend()
    right.bar([str(i) for i in range(len(cosines))], cosines)
    right.set(xlabel="module", ylabel="cosine with backpropagation", ylim=(0, 1.02))
    figure.savefig(path, dpi=110)


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parse() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("--virtual", action="store_true", help="step on a virtual timer: the same run every time")
    parser.add_argument("--smoke", action="store_true", help="a few batches only, on the virtual timer")
    parser.add_argument("--epochs", type=int, default=15, help="how often each image is shown (default 15)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", default="pc_digits.png", help="where to save the plot")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, but got {arguments.epochs}")
    if arguments.smoke:
        arguments.epochs, arguments.virtual = 1, True
    return arguments


if __name__ == "__main__":
    main()
