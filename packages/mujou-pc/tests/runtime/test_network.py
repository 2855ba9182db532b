"""Putting networks together, and the errors of doing it wrongly."""

import copy
import pickle

import pytest
import torch
from torch import nn

import mujou_pc as pc
from mujou_pc.runtime import Channel, Group, IntSpec, MultiPort, Network, Node, Port, TensorSpec, WiringError

from .parts import PERIOD, Recorder, row


def open_at_both_ends(**parts):
    first, *_, last = parts.values()
    return {"prev": first.prev, "next": last.next}


def test_a_port_that_is_joined_to_nothing_is_refused_by_name():
    a, b = Recorder(), Recorder()
    with pytest.raises(WiringError, match=r"b\.prev is joined to nothing"):
        Network({"a": a, "b": b}, ports={"prev": a.prev, "next": b.next})


def test_a_multi_port_may_have_no_peer():
    a = Recorder()
    Network({"a": a}, ports={"prev": a.prev})


def test_a_second_peer_of_a_port_is_refused_with_both_ends_named():
    a, b, c = Recorder(), Recorder(), Recorder()
    with pytest.raises(WiringError, match=r"cannot join b\.next and c\.prev: c\.prev is a Port and has a peer already"):
        Network(
            {"a": a, "b": b, "c": c},
            connect=[(a.next, c.prev), (b.next, c.prev)],
            ports={"prev": a.prev, "other": b.prev},
        )


def test_ends_that_do_not_fit_are_refused_with_both_specs():
    class Other(Node):
        def __init__(self):
            super().__init__(period=PERIOD)
            self.prev = Port(receives=TensorSpec((2, 3), torch.float32))

    a, b = Recorder(), Other()
    with pytest.raises(WiringError, match=r"a\.next sends int, but b\.prev receives torch.float32 \[2, 3\] on cpu"):
        Network({"a": a, "b": b}, connect=[(a.next, b.prev)], ports={"prev": a.prev})


def test_a_chain_given_another_width_is_refused_while_it_is_built():
    x, y = TensorSpec((2, 3)), TensorSpec((2, 3))
    source = pc.Input(x, y, period=PERIOD)
    layer = pc.Layer(
        nn.Linear(4, 4),
        pc.msg.activity_spec(TensorSpec((2, 4)), y),
        tau=pc.TimeConstants(h=0.02, lam=0.01, r=0.02),
        optimizer=pc.optim.SGD(tau=1.0),
        learn_interval=None,
    )
    with pytest.raises(WiringError, match=r"\[2, 3\].*\[2, 4\]"):
        Network({"source": source, "layer": layer}, connect=[(source.next, layer.prev)], ports={"prev": source.prev})


def test_a_name_given_to_a_part_and_a_port_is_refused():
    a = Recorder()
    with pytest.raises(WiringError, match="'prev' is given to both"):
        Network({"prev": a}, ports={"prev": a.prev})


@pytest.mark.parametrize("name", ["a.b", "", "a/b", "2"])
def test_a_name_that_would_confuse_paths_is_refused(name):
    with pytest.raises(WiringError, match="not a plain name"):
        Group({name: Recorder()})


def test_a_node_in_two_networks_is_refused():
    a, b = Recorder(), Recorder()
    row([a])
    with pytest.raises(WiringError, match="'n1' is already part of a network"):
        row([b, a])


def test_a_node_under_two_names_is_refused():
    a = Recorder()
    with pytest.raises(WiringError, match="already part"):
        Group({"a": a, "b": a})


def test_a_port_of_a_node_that_is_not_a_part_is_refused():
    a, b = Recorder(), Recorder()
    with pytest.raises(WiringError, match="not an open port of any part"):
        Network({"a": a}, connect=[(a.next, b.prev)], ports={"prev": a.prev})


def test_a_port_joined_inside_cannot_be_shown():
    a, b = Recorder(), Recorder()
    with pytest.raises(WiringError, match="cannot be shown"):
        Network({"a": a, "b": b}, connect=[(a.next, b.prev)], ports={"prev": a.prev, "too": b.prev})


def test_a_port_shown_under_two_names_is_refused():
    a = Recorder()
    with pytest.raises(WiringError, match="two names"):
        Network({"a": a}, ports={"one": a.prev, "two": a.prev})


def test_after_a_refusal_the_same_nodes_can_be_put_together_rightly():
    a, b = Recorder(), Recorder()
    with pytest.raises(WiringError):
        Network({"a": a, "b": b}, connect=[(a.next, b.prev)])
    pc.testing.run(Network({"a": a, "b": b}, connect=[(a.next, b.prev)], ports={"prev": a.prev})).step()
    assert b.prev.read() == 1


class Holds(Node):
    def __init__(self, module):
        super().__init__(period=PERIOD)
        self.module = module


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (linear := nn.Linear(2, 2), linear),
        (inner := nn.Linear(2, 2), nn.Sequential(nn.ReLU(), inner)),
    ],
    ids=["the module itself", "a module inside"],
)
def test_a_module_in_two_nodes_is_refused(one, other):
    with pytest.raises(ValueError, match="'a' and 'b' share the module"):
        Group({"a": Holds(one), "b": Holds(other)})


def test_a_weight_in_two_nodes_is_refused_also_across_nested_networks():
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = one.weight
    with pytest.raises(ValueError, match=r"'a\.x' and 'b\.x' share the weight"):
        Group({"a": Group({"x": Holds(one)}), "b": Group({"x": Holds(other)})})


def test_two_parameters_of_one_memory_in_two_nodes_are_refused():
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = nn.Parameter(one.weight.data)
    with pytest.raises(ValueError, match=r"'a' and 'b' share the weight module\.weight"):
        Group({"a": Holds(one), "b": Holds(other)})


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("part", ["network", "node", "run"])
def test_to_copy_a_network_or_a_run_says_what_to_do_instead(part, how):
    nodes = [Recorder(), Recorder()]
    network = row(nodes)
    given = {"network": network, "node": nodes[0], "run": pc.testing.run(network)}[part]
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        how(given)


def test_a_module_without_state_may_be_in_two_nodes():
    activation = nn.ReLU()
    Group({"a": Holds(nn.Sequential(nn.Linear(2, 2), activation)), "b": Holds(nn.Sequential(activation))})


def test_networks_and_groups_nest():
    inside = [row([Recorder(), Recorder()]) for _ in range(2)]
    side_by_side = Group({"left": inside[0], "right": inside[1]})
    last = Recorder()
    ports = side_by_side.open_ports
    assert set(ports) == {"left.prev", "left.next", "right.prev", "right.next"}
    network = Network(
        {"pair": side_by_side, "last": last},
        connect=[(ports["left.next"], last.prev)],
        ports={"a": ports["left.prev"], "b": ports["right.prev"], "next": last.next},
    )
    run = pc.testing.run(network)
    assert list(run.nodes) == ["pair.left.n0", "pair.left.n1", "pair.right.n0", "pair.right.n1", "last"]
    run.write(run.ports["a"], 10)
    run.step()
    assert run.read(run.ports["next"]) == 13
    assert len(set(run.state_dict()["messages"])) == 6


def test_several_peers_of_a_multi_port_read_the_same_message():
    a, b, c = Recorder(), Recorder(), Recorder()
    network = Network({"a": a, "b": b, "c": c}, connect=[(a.next, b.prev), (a.next, c.prev)], ports={"prev": a.prev})
    run = pc.testing.run(network)
    run.write(a.prev, 5)
    run.step([a])
    assert b.prev.read() == c.prev.read() == 6


def test_a_node_alone_can_be_the_root():
    node = Recorder()
    run = pc.testing.run(node)
    run.write(node.prev, 1)
    run.step()
    assert run.read(node.next) == 2


def test_ports_that_face_the_same_way_do_not_fit():
    with pytest.raises(WiringError, match="sends int, but"):
        Channel(Port(sends=IntSpec()), Port(sends=IntSpec()))


def test_reading_a_port_that_is_joined_to_nothing_says_so():
    with pytest.raises(RuntimeError, match="nothing to read"):
        Port(receives=IntSpec()).read()
    assert MultiPort(receives=IntSpec()).read() == ()


def test_sending_outside_a_run_says_so():
    with pytest.raises(RuntimeError, match="not in a run"):
        Port(sends=IntSpec()).send(1)
    with pytest.raises(RuntimeError, match="sends nothing"):
        Port(receives=IntSpec()).send(1)


@pytest.mark.parametrize("period", [0.0, -1.0, float("inf"), float("nan"), 1e-12])
def test_a_period_out_of_range_is_refused(period):
    with pytest.raises(ValueError, match="period"):
        Recorder(period=period)


def test_a_node_outside_a_run_has_no_timer():
    with pytest.raises(RuntimeError, match=r"start one with run\(root\)"):
        _ = Recorder().timer
