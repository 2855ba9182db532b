"""Libraries of predictive coding in JAX on the MNIST-sized samples: python peers_jax.py fabricpc|pcx SAMPLES.npz.

Each needs an environment of its own (pip install fabricpc; pip install pcx). The samples are written where torch is, by
python peers_jax.py write SAMPLES.npz. Settings are those of their own examples. The first epoch compiles, so the
seconds are those of the last.
"""

import itertools
import os
import sys
import time

import numpy as np

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

WIDTHS = (784, 512, 512, 10)
BATCH, EPOCHS, STEPS = 64, 2, 4


def main(library, path):
    if library == "write":
        import learning

        (x, x_test), (y, y_test) = learning.mnist_sized()
        np.savez(path, x=x.numpy(), x_test=x_test.numpy(), y=y.numpy(), y_test=y_test.numpy())
        return
    data = np.load(path)
    accuracy, seconds = {"fabricpc": fabricpc, "pcx": pcx}[library](data)
    print(f"| {library} | {STEPS} | {accuracy:.1%} | {seconds:.2f} |")


class Batches:
    """Shuffled anew in every epoch; the target is one-hot."""

    def __init__(self, x, y, *, shuffle):
        self.x, self.y, self.shuffle = x, np.eye(10, dtype=np.float32)[y], shuffle
        self.draw = np.random.default_rng(0)

    def __len__(self):
        return len(self.x) // BATCH

    def __iter__(self):
        order = self.draw.permutation(len(self.x)) if self.shuffle else np.arange(len(self.x))
        for i in range(len(self)):
            rows = order[i * BATCH : (i + 1) * BATCH]
            yield {"x": self.x[rows], "y": self.y[rows]}


def fabricpc(data):
    import jax
    import optax
    from fabricpc.core.activations import SigmoidActivation, SoftmaxActivation
    from fabricpc.core.energy import CrossEntropyEnergy
    from fabricpc.core.inference import InferenceSGD
    from fabricpc.core.topology import Edge
    from fabricpc.graph_assembly import TaskMap, graph
    from fabricpc.graph_initialization import initialize_params
    from fabricpc.nodes import Linear
    from fabricpc.training import evaluate, train

    first, *hidden, last = WIDTHS
    nodes = [Linear(shape=(first,), name="pixels")]
    nodes += [Linear(shape=(n,), activation=SigmoidActivation(), name=f"hidden{i}") for i, n in enumerate(hidden)]
    nodes += [Linear(shape=(last,), activation=SoftmaxActivation(), energy=CrossEntropyEnergy(), name="class")]
    structure = graph(
        nodes=nodes,
        edges=[Edge(source=a, target=b.slot("in")) for a, b in itertools.pairwise(nodes)],
        task_map=TaskMap(x=nodes[0], y=nodes[-1]),
        inference=InferenceSGD(eta_infer=0.05, infer_steps=STEPS),
    )
    key = jax.random.PRNGKey(0)
    moments = [time.process_time()]
    result = train(
        initialize_params(structure, key),
        structure,
        Batches(data["x"], data["y"], shuffle=True),
        optax.adamw(1e-3, weight_decay=1e-3),
        {"num_epochs": EPOCHS},
        key,
        verbose=False,
        epoch_callback=lambda _: moments.append(time.process_time()),
    )
    test = Batches(data["x_test"], data["y_test"], shuffle=False)
    measured = evaluate(result.params, structure, test, {"num_epochs": EPOCHS}, key)
    return float(measured["accuracy"]), moments[-1] - moments[-2]


def pcx(data):
    import jax
    import optax
    import pcx as px
    from pcx import functional as pxf
    from pcx import nn as pxnn
    from pcx import predictive_coding as pxc
    from pcx import utils as pxu

    class Model(pxc.EnergyModule):
        def __init__(self):
            super().__init__()
            self.layers = [pxnn.Linear(i, o) for i, o in itertools.pairwise(WIDTHS)]
            self.vodes = [pxc.Vode() for _ in WIDTHS[1:-1]] + [pxc.Vode(pxc.ce_energy)]
            self.vodes[-1].h.frozen = True

        def __call__(self, x, y):
            for layer, vode in zip(self.layers[:-1], self.vodes[:-1], strict=True):
                x = vode(jax.nn.gelu(layer(x)))
            self.vodes[-1](self.layers[-1](x))
            if y is not None:
                self.vodes[-1].set("h", y)
            return self.vodes[-1].get("u")

    of_rows = pxu.M(pxc.VodeParam | pxc.VodeParam.Cache).to((None, 0))

    @pxf.vmap(of_rows, in_axes=(0, 0), out_axes=0)
    def forward(x, y, *, model):
        return model(x, y)

    @pxf.vmap(of_rows, in_axes=(0,), out_axes=0)
    def predict(x, *, model):
        return model(x, None)

    @pxf.vmap(of_rows, in_axes=(0,), out_axes=(None, 0), axis_name="batch")
    def energy(x, *, model):
        y_hat = model(x, None)
        return jax.lax.pmean(model.energy().sum(), "batch"), y_hat

    activities = pxu.M(pxc.VodeParam).hasnot(frozen=True).to([False, True])
    weights = pxu.M(pxnn.LayerParam).to([False, True])

    @pxf.jit()
    def learn(x, y, *, model, optim_w, optim_h):
        model.train()
        with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
            forward(x, y, model=model)
        optim_h.init(pxu.M_hasnot(pxc.VodeParam, frozen=True)(model))
        for _ in range(STEPS):
            with pxu.step(model, clear_params=pxc.VodeParam.Cache):
                _, g = pxf.value_and_grad(activities, has_aux=True)(energy)(x, model=model)
            optim_h.step(model, g["model"], scale_by=len(x))
        optim_h.clear()
        with pxu.step(model, clear_params=pxc.VodeParam.Cache):
            _, g = pxf.value_and_grad(weights, has_aux=True)(energy)(x, model=model)
        optim_w.step(model, g["model"])

    @pxf.jit()
    def classes(x, *, model):
        model.eval()
        with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
            return predict(x, model=model).argmax(axis=-1)

    px.RKG.seed(0)
    model = Model()
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        forward(np.zeros((BATCH, 784), np.float32), np.zeros((BATCH, 10), np.float32), model=model)
    optim_h = pxu.Optim(lambda: optax.sgd(0.0183, momentum=0.35))
    optim_w = pxu.Optim(lambda: optax.adamw(3e-4, weight_decay=3.3e-3), pxu.M(pxnn.LayerParam)(model))
    moments = [time.process_time()]
    batches = Batches(data["x"], data["y"], shuffle=True)
    for _ in range(EPOCHS):
        for batch in batches:
            learn(batch["x"], batch["y"], model=model, optim_w=optim_w, optim_h=optim_h)
        jax.block_until_ready(model.layers[0].nn.weight.get())
        moments.append(time.process_time())
    right = [
        np.asarray(classes(batch["x"], model=model)) == batch["y"].argmax(1)
        for batch in Batches(data["x_test"], data["y_test"], shuffle=False)
    ]
    return float(np.mean(right)), moments[-1] - moments[-2]


if __name__ == "__main__":
    main(*sys.argv[1:])
