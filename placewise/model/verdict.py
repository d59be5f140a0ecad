"""The verdict: is a split worth it beside what people do without a placer? One pure function on plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

SINGLE_DEVICE, BALANCED_SPLIT = "best single device", "naive balanced split"
REPLICAS, EVEN_LAYERS = "data-parallel replicas", "even split by layers"
BEST_UNIFORM, MEGATRON = "best uniform plan", "Megatron's rule of thumb"
"""The names of the answers that people give without a placer; the last two where ops may be split."""
OWN_THREADS, CORE_COPIES = "the runtime's own threads on all cores", "a copy per core"
"""What a runtime does without a placer on the cores of a machine: one copy with a thread per core, or one per core."""

NO_TIME = "left out to leave time for the search"
"""Why a naive answer is missing; nothing is known of it."""

AS_FAR = "one device as far as the rules allow"
HARDLY = 0.01
"""A gain that is not above it is hardly worth it, even where the costs are given."""
_SAME, _SHOWN = 1e-9, 5e-4
"""A gain that is none, and the least one that is shown as a share."""


class Decision(StrEnum):
    """What a verdict says."""

    WORTH_IT = "worth it"
    WITHIN_ERROR = "within the error"
    HARDLY = "hardly worth it"
    SINGLE_DEVICE = "single device"
    REPLICAS = "replicas"
    NEEDED = "needed"
    SLOWER = "slower than a baseline"
    NO_CHOICE = "no choice"
    OWN_THREADS = "own threads"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How far off the seconds that are compared may be.

    `error` is the relative error of one figure, 0 where the costs are given; `source` says in words where it comes
    from. `margin` is the least gain of one figure over another that shows more than their errors: by default that of a
    quotient of two figures with independent errors, √2 · error.
    """

    error: float = 0.0
    source: str = "given"
    margin: float = -1.0

    def __post_init__(self) -> None:
        if self.margin < 0:
            object.__setattr__(self, "margin", math.sqrt(2) * self.error)


GIVEN = Uncertainty()


@dataclass(frozen=True, slots=True)
class Baseline:
    """A naive answer: its seconds (inf if it cannot run), why it breaks a rule ("" if it does not), its devices.

    `rule` is the name of that rule, where the judge found it.
    """

    value: float
    broken: str = ""
    devices: tuple[str, ...] = ()
    rule: str = ""

    @property
    def valid(self) -> bool:
        return not self.broken and math.isfinite(self.value)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, in words as well, on a plan beside the baseline `over`.

    `ratio` is the time of that baseline over the time of the plan (1.2: the plan is 1.2 times as fast; nan: there is
    nothing to compare with). `error`, `margin` and `source` are those of `Uncertainty`.
    """

    decision: Decision
    sentence: str
    over: str = ""
    ratio: float = math.nan
    error: float = 0.0
    margin: float = 0.0
    source: str = "given"


def decide(
    value: float,
    used: int,
    usable: Sequence[str],
    baselines: Mapping[str, Baseline],
    uncertainty: Uncertainty = GIVEN,
    *,
    whole: bool = False,
    cores: bool = False,
    trains: bool = False,
    lower_bound: float = 0.0,
) -> Verdict:
    """The verdict on a plan of `value` seconds that uses `used` of the `usable` devices.

    `baselines` are named by the constants of this module; other names count as splits. `whole`: the plan runs
    the whole model on every device that it uses. `cores`: it uses cores of one machine, on which a runtime has threads
    of its own; nothing is then worth it unless these were measured (`OWN_THREADS`), which no command does for a model
    that `trains`. `lower_bound`: seconds that no placement is below (0: unknown); splits are open, not ruled out, where
    it leaves room for more than the error.

    >>> single = Baseline(1.2, devices=("cuda:0",))
    >>> decide(1.0, 2, ["cuda:0", "cuda:1"], {SINGLE_DEVICE: single}).decision.value
    'worth it'
    >>> error = Uncertainty(0.15, "assumed efficiencies")
    >>> decide(1.0, 2, ["cuda:0", "cuda:1"], {SINGLE_DEVICE: single}, error).decision.value
    'within the error'
    """
    decision, over, sentence = _decide(value, used, usable, baselines, uncertainty, whole)
    if decision is Decision.SINGLE_DEVICE and lower_bound > 0:
        room = value / lower_bound
        if room - 1 > max(uncertainty.margin, HARDLY):
            sentence = (
                "One device alone is the best answer found; whether a split is worth it is open: "
                f"it is at most {room:.2f}× as fast."
            )
    if cores and decision is Decision.WORTH_IT and OWN_THREADS not in baselines:
        decision, sentence = Decision.NOT_MEASURED, _describe_unmeasured(baselines[over], value, used, trains)
    elif decision is Decision.WORTH_IT and REPLICAS in baselines and baselines[REPLICAS].broken == NO_TIME:
        decision, sentence = Decision.NOT_MEASURED, _describe_unpriced_copies(baselines[over], value, used)
    ratio = _ratio(baselines[over], value) if over in baselines else math.nan
    return Verdict(decision, sentence, over, ratio, uncertainty.error, uncertainty.margin, uncertainty.source)


def _decide(
    value: float, used: int, usable: Sequence[str], baselines: Mapping[str, Baseline], error: Uncertainty, whole: bool
) -> tuple[Decision, str, str]:
    single, replicas = baselines.get(SINGLE_DEVICE), baselines.get(REPLICAS)
    faster = {name: known for name, known in baselines.items() if known.valid and known.value < value * (1 - _SAME)}
    best = min(faster, key=lambda name: faster[name].value, default="")
    own = baselines.get(OWN_THREADS)
    if best == OWN_THREADS:
        return Decision.OWN_THREADS, OWN_THREADS, _praise_threads(faster[best], value, error)
    if best == REPLICAS:
        return Decision.REPLICAS, REPLICAS, _praise_replicas(faster[best], value, used, error)
    if best:
        return Decision.SLOWER, best, _describe_slower(best, faster[best], value)
    if len(usable) <= 1:
        only = usable[0] if usable else "none"
        return Decision.NO_CHOICE, "", f"No split to decide: {only} is the only device that may run ops."
    if single is None or not single.valid:
        return Decision.NEEDED, "", _describe_need(single, used)
    if used == 1:
        best_found = "A split is not worth it: one device alone is the best answer found."
        return Decision.SINGLE_DEVICE, SINGLE_DEVICE, best_found
    if whole:
        return _judge_copies(single, value, used, error)
    if replicas is not None and replicas.valid and _ratio(replicas, value) <= 1 + max(error.margin, _SAME):
        decision = Decision.WITHIN_ERROR if error.error else Decision.REPLICAS
        return decision, REPLICAS, _match_replicas(replicas, value, error)
    if own is not None and own.valid and _ratio(own, value) <= 1 + max(error.margin, HARDLY):
        return Decision.WITHIN_ERROR, OWN_THREADS, _match_threads(own, value, used, error)
    return _judge_gain(single, value, used, error)


def _describe_need(single: Baseline | None, used: int) -> str:
    """Why there is no single device to compare with."""
    apart = single is None or len(single.devices) > 1
    why = f" ({single.broken})" if single is not None and single.broken else ""
    rule = "" if single is None else single.rule
    if used == 1 and rule in ("", "support"):
        lack = "there is no other answer for one device"
    elif rule == "support":
        lack, why = "no device may run every op", ""
    elif rule not in ("", "memory"):
        lack = "one device alone breaks a rule"
    else:
        lack = "no device may run every op" if apart else "the model does not fit on one device"
    if used == 1:
        return f"Nothing to compare this plan with: {lack}{why}."
    return f"A split is needed: {lack}{why}; this split over {used} devices runs it."


def _judge_gain(single: Baseline, value: float, used: int, error: Uncertainty) -> tuple[Decision, str, str]:
    """The decision by what a split gains over one device, which is not faster."""
    ratio, name = _ratio(single, value), _name_single(single)
    gain, apart = ratio - 1, len(single.devices) > 1
    within = bool(error.error) and gain <= error.margin
    if apart and gain <= HARDLY:
        more = (
            f"this plan on {used} gains {gain:.1%} over {name}" if gain >= _SHOWN else "a further split gains nothing"
        )
        decision = Decision.WITHIN_ERROR if within else Decision.HARDLY
        return decision, SINGLE_DEVICE, f"The rules need more than one device; {more}."
    if within:
        start = "The rules need more than one device, and the gain is within" if apart else "Within"
        return Decision.WITHIN_ERROR, SINGLE_DEVICE, (
            f"{start} the error of the estimates {_bounds(error)}: {used} devices are {ratio:.2f}× as fast as {name}."
        )  # fmt: skip
    if apart:
        plain = f"The rules need more than one device; this plan on {used} is {ratio:.2f}× as fast as {name}."
        return Decision.WORTH_IT, SINGLE_DEVICE, plain
    if gain <= HARDLY:
        short = f"A split is hardly worth it: {used} devices gain {max(gain, 0.0):.1%} over {name}."
        return Decision.HARDLY, SINGLE_DEVICE, short
    above = f", above the error of the estimates {_bounds(error)}" if error.error else ""
    fast = f"The split is worth it: {used} devices are {ratio:.2f}× as fast as {name}{above}."
    return Decision.WORTH_IT, SINGLE_DEVICE, fast


def _judge_copies(single: Baseline, value: float, used: int, error: Uncertainty) -> tuple[Decision, str, str]:
    """The decision where the plan itself is copies of the whole model."""
    ratio = _ratio(single, value)
    within = (
        f", within the error of the estimates {_bounds(error)}" if error.error and ratio - 1 <= error.margin else ""
    )
    copies = (
        f"No split: {used} copies of the model serve {ratio:.2f}× as many samples as {_name_single(single)}{within}."
    )
    return Decision.REPLICAS, SINGLE_DEVICE, copies


def _praise_replicas(replicas: Baseline, value: float, used: int, error: Uncertainty) -> str:
    """That copies of the model beat the plan."""
    gain = value / replicas.value if replicas.value > 0 else math.inf
    within = (
        f"; the difference is within the error of the estimates {_bounds(error)}" if gain - 1 <= error.margin else ""
    )
    plan = "this split" if used > 1 else "this plan on one device"
    return (
        f"{_count(len(replicas.devices)).capitalize()} copies of the model serve {gain:.2f}× as many samples as "
        f"{plan}: copy the model instead{within}."
    )


def _match_replicas(replicas: Baseline, value: float, error: Uncertainty) -> str:
    """That the plan does not beat copies of the model."""
    copies, gain = f"{_count(len(replicas.devices))} copies of the model", _ratio(replicas, value)
    if not error.error:
        return f"{copies.capitalize()} serve as many samples as this split."
    return f"Within the error of the estimates {_bounds(error)}: this split is {gain:.2f}× as fast as {copies}."


def _praise_threads(own: Baseline, value: float, error: Uncertainty) -> str:
    """That the plain runtime on all cores beats the plan."""
    gain = value / own.value if own.value > 0 else math.inf
    within = f"; the difference is within the error {_bounds(error)}" if gain - 1 <= error.margin else ""
    return f"Do not split: {OWN_THREADS} are {gain:.2f}× as fast as this plan{within}."


def _match_threads(own: Baseline, value: float, used: int, error: Uncertainty) -> str:
    """That the plan does not beat the plain runtime on all cores by more than the error."""
    bounds = f" {_bounds(error)}" if error.error else ""
    return f"Within the error{bounds}: {used} devices are {_ratio(own, value):.2f}× as fast as {OWN_THREADS}."


def _describe_unmeasured(baseline: Baseline, value: float, used: int, trains: bool) -> str:
    """That one core is beaten, which says little while nobody measured a thread per core."""
    how = "time a step of training with them" if trains else "placewise profile, or placewise run"
    return (
        f"Not decided: {used} devices are {_ratio(baseline, value):.2f}× as fast as {_name_single(baseline)}, but "
        f"{OWN_THREADS} were not measured ({how})."
    )


def _describe_unpriced_copies(baseline: Baseline, value: float, used: int) -> str:
    """That one device is beaten, where copies of the model may be better still."""
    return (
        f"Not decided: {used} devices are {_ratio(baseline, value):.2f}× as fast as {_name_single(baseline)}, but "
        "there was no time to price copies of the whole model: give more with --time-limit."
    )


def _describe_slower(name: str, faster: Baseline, value: float) -> str:
    more = value / faster.value - 1 if faster.value > 0 else math.inf
    called = _name_single(faster).replace("best ", "") if name == SINGLE_DEVICE else f"the {name}"
    if more >= 1 and math.isfinite(more):
        return f"This plan takes {more + 1:.1f} times as long as {called}: try another placer or more time."
    how = "slightly slower" if more < 0.001 else f"{more:.1%} slower" if math.isfinite(more) else "slower"
    return f"This plan is {how} than {called}: try another placer or more time."


def _name_single(single: Baseline) -> str:
    return AS_FAR if len(single.devices) > 1 else f"the {SINGLE_DEVICE}"


def _ratio(baseline: Baseline, value: float) -> float:
    return baseline.value / value if value > 0 else 1.0


def _bounds(error: Uncertainty) -> str:
    return f"(±{100 * error.error:.2g} % each: {error.source})"


def _count(number: int) -> str:
    return ("no", "one", "two", "three", "four")[number] if number < 5 else str(number)
