"""A chain of convolutions: any module can be a node, and the gradients it sends back keep their four axes."""

import argparse
import copy
import math

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

import mujou_pc as pc
from mujou_pc.runtime import TensorSpec

BATCH = 32
PERIOD = 0.002
LEARN_INTERVAL = 6 * PERIOD
SHOWN = 7 * PERIOD
RATE = 2e-3
TAU = pc.TimeConstants(h=2 * PERIOD, lam=PERIOD, r=2 * PERIOD)
ADAMW = pc.optim.AdamW(
    tau=LEARN_INTERVAL / RATE,
    tau_m=-LEARN_INTERVAL / math.log(0.9),
    tau_v=-LEARN_INTERVAL / math.log(0.999),
)


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (x, y), test = images()
    modules = [
        nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(16 * 4 * 4, 10)),
    ]
    reference = nn.Sequential(*copy.deepcopy(modules))
    optimizer = torch.optim.AdamW(reference.parameters(), lr=RATE)
    batches = [rows for _ in range(arguments.epochs) for rows in torch.randperm(len(x)).split(BATCH)]
    batches = [rows for rows in batches if len(rows) == BATCH][: arguments.batches]
    chain = pc.Chain(
        modules,
        x=TensorSpec((BATCH, 1, 8, 8)),
        y=TensorSpec((BATCH,), torch.int64),
        loss=pc.loss.CrossEntropyLoss(),
        tau=TAU,
        optimizer=ADAMW,
        learn_interval=LEARN_INTERVAL,
    )
    with (pc.run if arguments.threads else pc.testing.run)(chain) as run:
        for rows in tqdm(batches, unit="batch"):
            pc.show(run, {"x": x[rows], "y": y[rows]}, seconds=SHOWN)
            optimizer.zero_grad()
            F.cross_entropy(reference(x[rows]), y[rows]).backward()
            optimizer.step()
    print(f"{'':20}{'test':>8}   shapes the gradients have")
    shapes = " ".join(str(tuple(layer.prev.sends.shape)) for layer in chain.layers)
    print(f"{'chain that runs':20}{accuracy(nn.Sequential(*modules), test):8.1%}   {shapes}")
    print(f"{'backpropagation':20}{accuracy(reference, test):8.1%}")


def images():
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=360, random_state=0, stratify=y)
    return tuple(
        (torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y))
        for x, y in ((x_train, y_train), (x_test, y_test))
    )


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    x, y = test
    return float((model(x).argmax(1) == y).double().mean())


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parse() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("--threads", action="store_true", help="in background threads, not on a virtual timer")
    parser.add_argument("--smoke", action="store_true", help="a few batches only")
    parser.add_argument("--epochs", type=int, default=10, help="how often each image is shown (default 10)")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, but got {arguments.epochs}")
    arguments.batches = 10 if arguments.smoke else None
    return arguments


if __name__ == "__main__":
    main()
