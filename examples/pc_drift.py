"""A stream that drifts: a camera slowly turns. The model frozen before loses its footing, the running one follows."""

import argparse
import copy
import math
from statistics import mean

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

import mujou_pc as pc
from mujou_pc.runtime import TensorSpec

BATCH = 32
PERIOD = 0.002
LEARN_INTERVAL = 6 * PERIOD
SHOWN = 7 * PERIOD
ADAMW = pc.optim.AdamW(
    tau=LEARN_INTERVAL / 1e-3,
    tau_m=-LEARN_INTERVAL / math.log(0.9),
    tau_v=-LEARN_INTERVAL / math.log(0.999),
)
QUARTER_TURN = math.pi / 2


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)
    chain = pc.Chain(
        [
            nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU()),
            nn.Sequential(nn.Linear(128, 128), nn.ReLU()),
            nn.Linear(128, 10),
        ],
        x=TensorSpec((BATCH, 1, 8, 8)),
        y=TensorSpec((BATCH,), torch.int64),
        loss=pc.loss.CrossEntropyLoss(),
        tau=pc.TimeConstants(h=2 * PERIOD, lam=PERIOD, r=2 * PERIOD),
        optimizer=ADAMW,
        learn_interval=LEARN_INTERVAL,
    )
    n = arguments.batches
    angles = [QUARTER_TURN * min(1.0, max(0.0, (i - n / 3) / (n / 2))) for i in range(n)]
    frozen = nn.Sequential(*copy.deepcopy(chain.modules))
    accuracies: dict[str, list[float]] = {"running": [], "frozen": []}
    with (pc.testing.run if arguments.virtual else pc.run)(chain) as run:
        for i, angle in enumerate(tqdm(angles, unit="batch")):
            if i == n // 3:  # the last weights of the upright stream; the run stands still while they are copied
                frozen.load_state_dict(weights(run, frozen))
            rows = torch.randint(len(x), (BATCH,))
            shown = turned(x[rows], angle)
            prediction = pc.show(run, {"x": shown, "y": y[rows]}, seconds=SHOWN)
            accuracies["running"].append(accuracy(prediction["y_hat"], y[rows]))
            if i >= n // 3:
                accuracies["frozen"].append(accuracy(frozen(shown), y[rows]))

    tenth = n // 10
    before = mean(accuracies["running"][n // 3 - tenth : n // 3])
    print(f"{'accuracy before learning':28}{'upright':>10}{'turned':>10}")
    for name, values in accuracies.items():
        print(f"{name:28}{before:10.1%}{mean(values[-tenth:]):10.1%}")
    plot(accuracies, angles, arguments.plot)
    print(f"plot: {arguments.plot}")


def weights(run: pc.runtime.Run, model: nn.Module) -> dict[str, torch.Tensor]:
    nodes = run.state_dict()["nodes"]
    learned = [nodes[name]["module"] for name in ("layer0", "layer1", "output")]
    return {f"{i}.{name}": value for i, module in enumerate(learned) for name, value in module.items()}


def turned(x: torch.Tensor, angle: float) -> torch.Tensor:
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0]]).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(turn, list(x.shape), align_corners=False), align_corners=False)


def accuracy(y_hat: torch.Tensor, y: torch.Tensor) -> float:
    return float((y_hat.argmax(1) == y).double().mean())


def plot(accuracies: dict[str, list[float]], angles: list[float], path: str) -> None:
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(7, 4), height_ratios=(3, 1), sharex=True, layout="constrained")
    n = len(angles)
    for name, values in accuracies.items():
        smooth = [mean(values[max(0, i - 25) : i + 1]) for i in range(len(values))]
        upper.plot(range(n - len(values), n), smooth, label=name)
    upper.set(ylabel="accuracy before learning", ylim=(0, 1.02))
    upper.legend()
    lower.plot([math.degrees(angle) for angle in angles], color="gray")
    lower.set(xlabel="batch", ylabel="turned by °")
    figure.savefig(path, dpi=110)


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parse() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("--virtual", action="store_true", help="step on a virtual timer: the same run every time")
    parser.add_argument("--smoke", action="store_true", help="a few batches only, on the virtual timer")
    parser.add_argument("--batches", type=int, default=900, help="length of the stream (default 900)")
    parser.add_argument("--plot", default="pc_drift.png", help="where to save the plot")
    arguments = parser.parse_args()
    if arguments.batches < 30:
        parser.error(f"--batches must be at least 30, but got {arguments.batches}")
    if arguments.smoke:
        arguments.batches, arguments.virtual = 60, True
    return arguments


if __name__ == "__main__":
    main()
