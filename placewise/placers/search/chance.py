"""Random numbers inside kernels: splitmix64 (Steele, Lea and Flood, OOPSLA 2014), one word of state."""

from __future__ import annotations

import numpy as np

from placewise.simulate.kernels import inlined


@inlined
def bits(state):
    """The next 64 random bits of `state` [1]."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def below(state, n):
    """A whole number from 0 to below n < 2^31."""
    return np.int64(((bits(state) >> np.uint64(33)) * np.uint64(n)) >> np.uint64(31))


@inlined
def share(state):
    """A number from 0 to below 1."""
    return np.int64(bits(state) >> np.uint64(11)) * (1.0 / (1 << 53))
