"""Showing a sample to a running network."""

from mujou_pc.msg import Prediction, Sample
from mujou_pc.runtime import Run

__all__ = ["show"]


def show(run: Run, sample: Sample, *, seconds: float, timeout: float = 10.0) -> Prediction:
    """Write a sample, let the run go on with it, and give the prediction made before learning.

    That is the first prediction of the sample: nothing has learned from it when it passes through.

    Args:
        run: of a ``Chain``, or of another root that shows a port ``prev`` for a ``Sample`` and a port
            ``next`` for a ``Prediction``.
        sample: the sample.
        seconds: how long it stays, on the run's timer.
        timeout: seconds to wait beyond that for a prediction that is late.

    Raises:
        TimeoutError: no prediction of the sample came.
        NetworkError: a node failed.

    Example:
        >>> import mujou_pc as pc, torch
        >>> from mujou_pc.runtime import TensorSpec
        >>> chain = pc.Chain(
        ...     [torch.nn.Linear(4, 2)],
        ...     x=TensorSpec((3, 4)),
        ...     y=TensorSpec((3, 2)),
        ...     loss=pc.loss.MSELoss(),
        ...     tau=pc.TimeConstants(h=0.02, lam=0.01, r=0.02),
        ...     optimizer=pc.optim.SGD(tau=1.0),
        ...     learn_interval=0.04,
        ... )
        >>> with pc.testing.run(chain) as run:
        ...     prediction = pc.show(run, {"x": torch.ones(3, 4), "y": torch.zeros(3, 2)}, seconds=0.1)
        >>> tuple(prediction["y_hat"].shape)
        (3, 2)
    """
    found: list[Prediction] = []
    with run.subscribe(run.ports["next"], maxlen=None) as predictions:
        time = run.write(run.ports["prev"], sample)

        def arrived() -> bool:
            found.extend(made for made in predictions.drain() if made["time"] == time)
            return bool(found)

        run.sleep(seconds)
        run.wait(arrived, timeout)
    return found[0]
