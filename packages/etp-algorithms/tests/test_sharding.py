"""Learners on meshes of devices: the gradient of one device, with one all-reduce per sequence."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

CHILD = Path(__file__).parent / "mesh_child.py"
CASES = ["8 folded", "4 windows", "wide"]


def start(devices, *args):
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(CHILD), *map(str, args)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


@functools.cache
def outcome():
    try:
        return finish(start(8, "devices"))
    except AssertionError as error:  # kept, so that every test reports it and the process runs once
        return error


def devices():
    found = outcome()
    if isinstance(found, AssertionError):
        raise found
    return found


@pytest.mark.parametrize("case", CASES)
def test_devices_find_the_gradient_the_traces_and_the_states_of_one(case):
    found = devices()[case]
    assert max(found["gradient"], found["traces"], found["hidden"]) < 1e-12


@pytest.mark.parametrize("case", CASES[:-1])
def test_traces_and_states_stay_split_by_lane(case):
    assert all("data" in spec for spec in devices()[case]["split"])


def test_wide_layers_are_split_over_the_other_axis_too():
    assert all({"data", "model"} <= set(spec) for spec in devices()["wide"]["split"])


@pytest.mark.parametrize("case", CASES[:-1])
def test_gradients_meet_once_per_sequence_and_never_inside_a_loop(case):
    found = devices()[case]
    assert found["inside"] == []
    assert set(found["outside"]) == {"all-reduce"}
    assert len(found["outside"]) <= 4  # one per parameter at most; XLA merges them


def test_single_calls_are_partitioned_and_leave_the_traces_where_they_were():
    found = devices()["single calls"]
    assert found["gradient"] < 1e-12
    assert all("data" in spec for spec in found["split"])


@pytest.mark.parametrize(
    ("n", "message"),
    [(0, "not 'rows'"), (1, "do not divide a batch of 9"), (2, "one loss per lane"), (3, "is the batch of 16; got")],
)
def test_a_mesh_refuses(n, message):
    assert message in devices()["refused"][n]


def test_two_processes_find_the_gradient_of_one():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        coordinator = f"localhost:{probe.getsockname()[1]}"
    processes = [start(2, "processes", n, 2, coordinator) for n in range(2)]
    for found in map(finish, processes):
        assert (found["devices"], found["local"]) == (4, 2)
        assert found["gradient"] < 1e-12
