"""Other libraries of predictive coding, with the settings their own pages give: python peers.py digits|mnist.

Needs an environment of its own: pip install torch scikit-learn torch-pc pcn-torch pydeepity==0.1.0a3. A row is library,
steps of inference for a batch, test accuracy, CPU seconds for an epoch.
"""

import contextlib
import io
import sys
import time

import learning
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

TASKS = {  # samples, widths, batch, epochs
    "digits": (learning.digits, (64, 128, 128, 10), 32, 3),
    "mnist": (learning.mnist_sized, (784, 512, 512, 10), 64, 2),
}
MORE_STEPS = {"digits": [20], "mnist": []}


def main(task):
    torch.set_num_threads(1)
    samples, widths, batch, epochs = TASKS[task]
    data = samples()
    (x, x_test), (y, y_test) = data
    train, test = (TensorDataset(*pair) for pair in ((x, y), (x_test, y_test)))
    loaders = DataLoader(train, batch, shuffle=True, drop_last=True), DataLoader(test, batch)
    print(f"| library, {epochs} epochs | steps per batch | test | CPU s/epoch |")
    print("|---|---|---|---|")
    for name, accuracy, seconds, steps in learning.compare(data, widths, batch, epochs):
        print(f"| {name} | {steps} | {accuracy:.1%} | {seconds:.2f} |", flush=True)
    for steps in [learning.PERIODS, *MORE_STEPS[task]]:
        for name, peer in (("torch-pc", torch_pc), ("pcn-torch", pcn_torch), ("pydeepity SimplePCN", deepity)):
            torch.manual_seed(0)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                accuracy, seconds = peer(loaders, steps, widths, epochs)
            print(f"| {name} | {steps} | {accuracy:.1%} | {seconds / epochs:.2f} |", flush=True)


def torch_pc(loaders, steps, widths, epochs):
    from torch_pc import PCNetwork, test_pcn_classify, train_pcn

    train, test = loaders
    model = PCNetwork(dims=list(widths[:-1]), output_dim=widths[-1])
    began = time.process_time()
    train_pcn(
        model=model,
        data_loader=train,
        num_epochs=epochs,
        eta_infer=0.1,
        eta_learn=0.01,
        infer_steps=steps,
        T_learn=3,
        device="cpu",
    )
    seconds = time.process_time() - began
    top1, _ = test_pcn_classify(model=model, data_loader=test, infer_steps=300, eta_infer=0.1, device="cpu")
    return top1 if top1 <= 1 else top1 / 100, seconds


def pcn_torch(loaders, steps, widths, epochs):
    from pcn_torch import PredictiveCodingNetwork, TrainConfig, test_pcn, train_pcn

    train, test = loaders
    model = PredictiveCodingNetwork(
        dims=list(widths[:-1]), activation="relu", output_dim=widths[-1], mode="classification"
    )
    config = TrainConfig(task="classification", T_infer=steps, lr_infer=0.05, lr_learn=0.005, num_epochs=epochs)
    began = time.process_time()
    train_pcn(model, train, config)
    seconds = time.process_time() - began
    return test_pcn(model, test, config)["accuracy"], seconds


def deepity(loaders, steps, widths, epochs):
    from deepity import Linear, SimplePCN, TanH

    train, test = loaders
    batch, (first, *hidden, last) = train.batch_size, widths
    layers, before = [], first
    for width in hidden:
        layers += [Linear(before, width), TanH()]
        before = width
    net = SimplePCN(*layers, Linear(before, last), batch_size=batch)
    net.configure(learning_rate=0.001, inference_rate=0.3, lmbda=0.0001, optimizer="ADAMW")
    began = time.process_time()
    for _ in range(epochs):
        for x, y in train:
            net.train_step(x.numpy().ravel(), np.eye(last, dtype=np.float32)[y.numpy()].ravel(), steps=steps)
    seconds = time.process_time() - began
    correct = total = 0
    for x, y in test:
        padded = np.zeros((batch, first), dtype=np.float32)
        padded[: len(x)] = x.numpy()
        predicted = np.asarray(net.predict(padded, steps)).reshape(batch, last)[: len(x)].argmax(1)
        correct += int((predicted == y.numpy()).sum())
        total += len(y)
    return correct / total, seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
