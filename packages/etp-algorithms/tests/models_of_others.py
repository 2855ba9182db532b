"""Models that others wrote, from the index: neurons and synapses of brainpy, behind a marked weight of ours."""

import brainstate
import brainunit as u
import jax
from brainpy import state as bp

from etp_ops import matmul

from .models import IN, N, array

STEP = {"dt": 0.5 * u.ms, "t": 0.0 * u.ms}


class Driven(brainstate.nn.Module):
    """A neuron or synapse behind a dense weight, read out by what it returns and by all of its states."""

    def __init__(self, make, unit, scale):
        super().__init__()
        self.W = brainstate.ParamState(array(0, IN, N, scale=1.0))
        brainstate.random.seed(0)  # some draw their states when they are initialised
        self.other = make(N)
        self.unit, self.scale = unit, scale

    def update(self, x):
        out = u.get_mantissa(self.other.update(self.scale * matmul(x, self.W.value) * self.unit))
        states = self.other.states(brainstate.HiddenState).values()
        return out + 0.01 * sum(leaf for state in states for leaf in jax.tree.leaves(state.value))


class Chain(brainstate.nn.Module):
    """Neurons, short-term plasticity, a marked weight, a synapse and neurons again."""

    def __init__(self, plasticity, synapse):
        super().__init__()
        self.pre = bp.LIF(IN, V_th=0.3 * u.mV)
        self.plasticity = plasticity(IN)
        self.W = brainstate.ParamState(array(0, IN, N, scale=1.0))
        self.synapse, self.post = synapse(N), bp.LIF(N)

    def update(self, x):
        self.pre.update(8.0 * x * u.mA)
        released = self.plasticity.update(self.pre.get_spike())
        conductance = self.synapse.update(10.0 * matmul(released, self.W.value) * u.mS)
        self.post.update(u.get_mantissa(conductance) * u.mA)
        return self.post.get_spike() + u.get_mantissa(self.post.V.value)


def driven(make, unit, scale):
    def factory():
        return Driven(make, unit, scale)

    factory.__name__ = make.__name__
    return factory


OTHERS = {
    "IF": driven(bp.IF, u.mA, 8.0),
    "LIF": driven(bp.LIF, u.mA, 8.0),
    "LIFRef": driven(bp.LIFRef, u.mA, 8.0),
    "ALIF": driven(bp.ALIF, u.mA, 8.0),
    "CubaLIF": driven(bp.CubaLIF, u.mA, 8.0),
    "ExpIF": driven(bp.ExpIF, u.mA, 20.0),
    "AdExIF": driven(bp.AdExIF, u.mA, 60.0),
    "QuaIF": driven(bp.QuaIF, u.mA, 60.0),
    "AdQuaIF": driven(bp.AdQuaIF, u.mA, 60.0),
    "Izhikevich": driven(bp.Izhikevich, u.mV / u.ms, 60.0),
    "Gif": driven(bp.Gif, u.mA, 8.0),
    "HH": driven(bp.HH, u.uA, 20.0),
    "MorrisLecar": driven(bp.MorrisLecar, u.uA, 100.0),
    "FitzHughNagumo": driven(bp.FitzHughNagumo, 1.0, 1.0),
    "HindmarshRose": driven(bp.HindmarshRose, 1.0, 1.0),
    "WangBuzsakiHH": driven(bp.WangBuzsakiHH, u.uA, 10.0),
    "Expon": driven(bp.Expon, u.mS, 1.0),
    "DualExpon": driven(bp.DualExpon, u.mS, 1.0),
    "Alpha": driven(bp.Alpha, u.mS, 1.0),
    "STP": driven(bp.STP, 1.0, 0.3),
    "STD": driven(bp.STD, 1.0, 0.3),
    "LIF, STD, weight, Expon, LIF": lambda: Chain(bp.STD, bp.Expon),
    "LIF, STP, weight, Alpha, LIF": lambda: Chain(bp.STP, bp.Alpha),
}
"""Every parameter of each is exact."""
