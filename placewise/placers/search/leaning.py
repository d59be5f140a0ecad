"""Where probabilities would have a group: what searches that were told of some draw from them, inside kernels.

`likely` [n, n_devices] are probabilities of groups; rows add up to 1.
"""

from __future__ import annotations

from placewise.placers.search.chance import below, share
from placewise.simulate.kernels import inlined

TOLD_EVERY = 4
"""Where probabilities are known, every so many-th move begins with what they say."""
LOOKS = 8
"""Groups looked at, at most, for one whose device is improbable."""


@inlined
def doubtful(likely, home, rng):
    """A group, those sooner whose devices `home` [n] are improbable."""
    group = below(rng, len(home))
    for _ in range(LOOKS):
        if share(rng) >= likely[group, home[group]]:
            break
        group = below(rng, len(home))
    return group


@inlined
def device_at(likely, group, mark):
    """The device of a group at which the sum of its probabilities, device by device, exceeds `mark`."""
    total, last = 0.0, 0
    for device in range(likely.shape[1]):
        if likely[group, device] > 0.0:
            total += likely[group, device]
            last = device
            if total > mark:
                break
    return last


@inlined
def elsewhere(likely, group, home, mark):
    """The same among the devices other than its own; its own if all the probability is there."""
    mark *= 1.0 - likely[group, home]
    total, last = 0.0, home
    for device in range(likely.shape[1]):
        if likely[group, device] > 0.0 and device != home:
            total += likely[group, device]
            last = device
            if total > mark:
                break
    return last


@inlined
def rather(likely, group, home, device, mark):
    """Whether a group goes to a device from its own: as often as the two probabilities say."""
    here, there = likely[group, home], likely[group, device]
    return mark * (here + there) < there
