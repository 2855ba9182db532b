"""What a whole process sees: imports, exit, threads and time."""

import os
import subprocess
import sys
import textwrap

import pytest

TIMEOUT = 300  # a process that hangs is found; a loaded machine may take a minute to import torch
CHAIN = """
import sys, time, torch
import mujou_pc as pc
from torch import nn
from mujou_pc.runtime import TensorSpec
def chain(modules=None, **settings):
    return pc.Chain(
        modules or [nn.Linear(4, 4), nn.Linear(4, 2)], x=TensorSpec((2, 4)), y=TensorSpec((2, 2)),
        loss=pc.loss.MSELoss(), tau=pc.TimeConstants(h=0.004, lam=0.002, r=0.004),
        optimizer=pc.optim.AdamW(tau=1.0, tau_m=0.1, tau_v=1.0), learn_interval=0.03, **settings)
SAMPLE = {"x": torch.zeros(2, 4), "y": torch.zeros(2, 2)}
"""


def python(program):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", CHAIN + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def test_a_run_imports_nothing_and_nobody_imports_torch_dynamo():
    done = python(
        """
        hand = pc.testing.run(chain())
        before = set(sys.modules)
        pc.show(hand, SAMPLE, seconds=0.1)
        assert set(sys.modules) == before, set(sys.modules) - before
        with pc.run(chain()) as run:
            pc.show(run, SAMPLE, seconds=0.05)
            run.state_dict()
        nn.functional.cross_entropy(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
        assert "torch._dynamo" not in sys.modules
        assert not [name for name in sys.modules if name.split(".")[0] in ("jax", "etp_core")]
        """
    )
    assert done.returncode == 0, done.stderr


def test_what_is_easily_given_in_place_of_a_setting_is_refused_with_what_is_needed():
    done = python(
        """
        from mujou_pc.optim import SGD
        TAU = pc.TimeConstants(h=0.004, lam=0.002, r=0.004)
        def told(**given):
            settings = dict(tau=TAU, optimizer=SGD(tau=1.0), learn_interval=None, loss=pc.loss.MSELoss())
            modules = given.pop("modules", [nn.Linear(4, 2)])
            try:
                pc.Chain(modules, x=TensorSpec((2, 4)), y=TensorSpec((2, 2)), **settings | given)
            except TypeError as error:
                return str(error)
        assert "0.1 was given where TimeConstants" in told(tau=0.1)
        assert "where a setting of optim" in told(optimizer=torch.optim.SGD)
        assert "where a torch.nn.Module" in told(modules=[torch.tanh])
        try:
            TensorSpec(6)
        except TypeError as error:
            assert "shape must be a tuple" in str(error)
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_in_a_forked_child_the_run_has_ended_and_its_nodes_can_run_anew():
    done = python(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of every fork with threads
        network = chain()
        run = pc.run(network)
        pc.show(run, SAMPLE, seconds=0.02)
        if os.fork() == 0:
            run.sleep(100.0)
            try:
                run.wait(lambda: False)
            except TimeoutError:
                print("the child waits for nobody")
            run.stop()
            run.stop()
            with pc.testing.run(network) as anew:
                anew.step()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        pc.show(run, SAMPLE, seconds=0.02)
        run.stop()
        """
    )
    assert done.returncode == 0, done.stderr
    assert "the child waits for nobody" in done.stdout


def test_a_forgotten_stop_does_not_keep_the_interpreter_and_still_stops_the_nodes():
    done = python(
        """
        class Says(pc.runtime.Node):
            def on_stop(self):
                print("stopped", flush=True)
        run = pc.run(Says(period=0.001))
        run.sleep(0.02)
        print("end of the program", flush=True)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["end of the program", "stopped"]


def test_a_forgotten_stuck_node_does_not_keep_the_interpreter():
    done = python(
        """
        class Sleeps(pc.runtime.Node):
            def on_update(self, dt):
                time.sleep(1000)
        pc.run(Sleeps(period=0.001)).sleep(0.05)
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_failure_that_no_call_told_is_told_at_exit():
    done = python(
        """
        class Fails(pc.runtime.Node):
            def on_update(self, dt):
                raise KeyError("lost")
        run = pc.run(Fails(period=0.001))
        time.sleep(0.2)
        """
    )
    assert "lost" in done.stderr
    assert "on_update" in done.stderr


def test_the_cpu_time_of_a_run_stays_within_its_workers():
    done = python(
        """
        for workers in (1, 2):
            big = [nn.Linear(4, 4), *[nn.Linear(4, 4) for _ in range(6)], nn.Linear(4, 2)]
            with pc.run(chain(big), workers=workers) as run:
                pc.show(run, SAMPLE, seconds=0.1)
                cpu, wall = time.process_time(), time.monotonic()
                pc.show(run, SAMPLE, seconds=1.0)
                cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            assert cpu < (workers + 0.5) * wall, (workers, cpu, wall)
        """
    )
    assert done.returncode == 0, done.stderr
