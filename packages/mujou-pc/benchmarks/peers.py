"""Other libraries of predictive coding on the digits, with the settings their own pages give.

Each needs its own environment: pip install torch scikit-learn torch-pc pcn-torch pydeepity==0.1.0a3, then
python peers.py. A line is library, steps of inference for a batch, test accuracy, CPU seconds for an epoch.
"""

import contextlib
import io
import time

import learning
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3
BATCH = 32


def main():
    torch.set_num_threads(1)
    (x, x_test), (y, y_test) = learning.digits()
    train, test = (TensorDataset(*pair) for pair in ((x, y), (x_test, y_test)))
    loaders = DataLoader(train, BATCH, shuffle=True, drop_last=True), DataLoader(test, BATCH)
    print(f"| library, {EPOCHS} epochs | steps per batch | test | CPU s/epoch |")
    print("|---|---|---|---|")
    for name, accuracy, seconds, steps in learning.compare(learning.digits(), (64, 128, 128, 10), BATCH, EPOCHS):
        print(f"| {name} | {steps} | {accuracy:.1%} | {seconds:.2f} |", flush=True)
    for steps in (learning.PERIODS, 20):
        for name, peer in (("torch-pc", torch_pc), ("pcn-torch", pcn_torch), ("pydeepity SimplePCN", deepity)):
            torch.manual_seed(0)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                accuracy, seconds = peer(loaders, steps)
            print(f"| {name} | {steps} | {accuracy:.1%} | {seconds / EPOCHS:.2f} |", flush=True)


def torch_pc(loaders, steps):
    from torch_pc import PCNetwork, test_pcn_classify, train_pcn

    train, test = loaders
    model = PCNetwork(dims=[64, 128, 128], output_dim=10)
    began = time.process_time()
    train_pcn(
        model=model,
        data_loader=train,
        num_epochs=EPOCHS,
        eta_infer=0.1,
        eta_learn=0.01,
        infer_steps=steps,
        T_learn=3,
        device="cpu",
    )
    seconds = time.process_time() - began
    top1, _ = test_pcn_classify(model=model, data_loader=test, infer_steps=300, eta_infer=0.1, device="cpu")
    return top1 if top1 <= 1 else top1 / 100, seconds


def pcn_torch(loaders, steps):
    from pcn_torch import PredictiveCodingNetwork, TrainConfig, test_pcn, train_pcn

    train, test = loaders
    model = PredictiveCodingNetwork(dims=[64, 128, 128], activation="relu", output_dim=10, mode="classification")
    config = TrainConfig(task="classification", T_infer=steps, lr_infer=0.05, lr_learn=0.005, num_epochs=EPOCHS)
    began = time.process_time()
    train_pcn(model, train, config)
    seconds = time.process_time() - began
    return test_pcn(model, test, config)["accuracy"], seconds


def deepity(loaders, steps):
    from deepity import Linear, SimplePCN, TanH

    net = SimplePCN(Linear(64, 128), TanH(), Linear(128, 128), TanH(), Linear(128, 10), batch_size=BATCH)
    net.configure(learning_rate=0.001, inference_rate=0.3, lmbda=0.0001, optimizer="ADAMW")
    began = time.process_time()
    for _ in range(EPOCHS):
        for x, y in loaders[0]:
            net.train_step(x.numpy().ravel(), np.eye(10, dtype=np.float32)[y.numpy()].ravel(), steps=steps)
    seconds = time.process_time() - began
    correct = total = 0
    for x, y in loaders[1]:
        padded = np.zeros((BATCH, 64), dtype=np.float32)
        padded[: len(x)] = x.numpy()
        correct += int(
            (np.asarray(net.predict(padded, steps)).reshape(BATCH, 10)[: len(x)].argmax(1) == y.numpy()).sum()
        )
        total += len(y)
    return correct / total, seconds


if __name__ == "__main__":
    main()
