"""What results look like on terminals of every width, and whether the sentences about them are true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import placewise as pw
from placewise._util.text import visible
from placewise.core.place import place
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.result import DeviceUse, Judgement, Result
from placewise.model.verdict import BALANCED_SPLIT, EVEN_LAYERS, REPLICAS, SINGLE_DEVICE
from placewise.reporting.console import result_view, rows_table
from placewise.reporting.devices import DeviceView
from placewise.reporting.plain import lines, plain
from placewise.reporting.sentences import baseline_lines, host_remark, replica_lines, verdict
from placewise.simulate import judge_placement


def side_by_side(seconds: list[list[float]], kinds: tuple[str, ...], objective: Objective, *pins: Rule) -> Problem:
    """Ops without edges on devices d0, d1, …; `seconds` by op and device."""
    builder = GraphBuilder()
    for op in range(len(seconds)):
        builder.add_op(f"op{op}", "Op")
    devices = tuple(Device(f"d{number}", kind=kind) for number, kind in enumerate(kinds))
    ends = [pair for d in devices if not d.is_host for pair in ((d.name, HOST), (HOST, d.name))]
    cluster = Cluster(devices, tuple(Link(*pair, 1e9) for pair in ends), "staged")
    costs = CostTable.given(np.array(seconds), np.zeros((0, len(cluster.class_bandwidth))))
    return Problem(builder.build(), cluster, costs, objective, Constraints(pins=pins))


PIPELINE = Objective("throughput")
TWO = side_by_side([[1.0, 1.0], [1.0, 1.0]], ("accelerator", "accelerator"), PIPELINE)


def use(name: str) -> DeviceUse:
    """A device with figures that are easy to find again."""
    return DeviceUse(name, 1234, 0.1111, 0.2222, 0.3333, 0.4444, 0.0, 5 * 2.0**30, 6 * 2.0**30, 7 * 2.0**30, "cuda:1")


def answered(problem: Problem, *device: int) -> Result:
    """The result of placing `problem`, with another placement put in for the placer's."""
    placement = Placement(np.array(device, np.int32))
    return replace(place(problem, "single"), placement=placement, judgement=judge_placement(problem, placement))


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 120])
def test_names_and_numbers_stay_whole_at_every_width(width: int) -> None:
    """Nothing is cut short; the load is always there; lines keep within the width."""
    names = ("cuda:0", "cuda:1", "cpu")
    judgement = Judgement(0.4444, tuple(map(use, names)), (), bottleneck="cuda:0")
    text = plain(DeviceView(judgement), width=width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    for name in names:
        assert any(line.startswith(name) and "444.4 ms" in line for line in text.splitlines())
    if width >= 60:
        assert text.count("1234") == text.count("6 GiB of 7 GiB") == 3


def test_the_bar_goes_first_then_transfers_then_compute() -> None:
    """As the terminal narrows, columns leave in this order, and none comes back."""
    judgement = Judgement(0.4444, (use("cuda:0"), use("cpu")), (), bottleneck="cuda:0")
    shown = [plain(DeviceView(judgement), width=width) for width in range(130, 30, -1)]
    last = {word: sum(word in text for text in shown) for word in ("█", "send", "receive", "compute", "memory", "load")}
    assert last["█"] < last["send"] == last["receive"] < last["compute"] < last["memory"] < last["load"] == len(shown)


def test_phases_have_columns_where_a_pipeline_flushes() -> None:
    """Forward and backward loads stand there with the schedule gpipe only, and leave after compute."""
    plain_use, flushing = use("cuda:0"), replace(use("cuda:0"), forward=0.1999, backward=0.2445)
    wide, narrow = (plain(DeviceView(Judgement(0.4444, (flushing,), ())), width=width) for width in (150, 60))
    assert "forward" in wide and "199.9 ms" in wide and "backward" in wide and "244.5 ms" in wide
    assert "forward" not in plain(DeviceView(Judgement(0.4444, (plain_use,), ())), width=150)
    assert max(map(len, narrow.splitlines())) <= 60


def test_long_names_fold() -> None:
    """A device name of eighty characters is all there, on several lines of one column."""
    name = "rack-" + "".join(chr(97 + i % 26) for i in range(75))
    text = plain(DeviceView(Judgement(1.0, (use(name), use("cpu")), ())), width=60)
    folded = "".join(line.split(" ")[0] for line in text.splitlines()[1:])
    assert name in folded and "…" not in text and max(map(len, text.splitlines())) <= 60


def test_words_of_the_user_are_no_markup() -> None:
    """Brackets and emoji codes in names are printed as they are."""
    name = "a[/b][bold]:smile:"
    assert name in plain(rows_table(("x[/y]",), [(name,)])) and name in plain(name)
    assert name in plain(DeviceView(Judgement(1.0, (use(name),), (), wires={name: 0.5})), width=200)


def test_control_characters_are_shown() -> None:
    """A name cannot colour, clear or break lines; letters beyond ASCII stay."""
    assert "".join(map(visible, ("\x1b[31m", "a\nb\r\t", "\x00\x7f\x9b", "\u2028é↔😀", "\u202etxt.exe\u2066"))) == (
        r"\x1b[31ma\x0ab\x0d\x09\x00\x7f\x9b\u2028é↔😀\u202etxt.exe\u2066"
    )
    name, shown = "a\x1b[31m\nb\x85c", r"a\x1b[31m\x0ab\x85c"
    table = DeviceView(Judgement(1.0, (use(name),), (), wires={name: 0.5}))
    for text in (plain(name), plain(rows_table((name,), [(name,)])), plain(table, width=200)):
        assert shown in text and "\x1b" not in text and not any(line.startswith("b") for line in text.splitlines())


def test_sentences_stay_on_one_line_and_lines_end_without_spaces() -> None:
    """Only tables mind the width; no line ends in spaces; a table without headings has no blank first line."""
    sentence = " ".join(["word"] * 60)
    assert plain(sentence) == sentence + "\n"
    text = lines(rows_table(("", ""), [("a", "b"), ("long", "")]), "", "end")
    assert text == "a     b\nlong\n\nend\n"


def test_the_verdict_counts_devices_that_may_run_something() -> None:
    """With one usable device there is no split to decide; with two, the speedup is given, or that copies match it."""
    alone = side_by_side([[1.0, np.inf]], ("accelerator", "accelerator"), PIPELINE)
    assert verdict(place(alone)) == "No split to decide: d0 is the only device that may run ops."
    assert verdict(place(TWO)) == "Two copies of the model serve as many samples as this split."
    one_sample = TWO.with_(objective=Objective("latency"))
    assert verdict(place(one_sample)) == "The split is worth it: 2 devices are 2.00× as fast as the best single device."


def test_the_verdict_does_not_praise_what_a_baseline_beats() -> None:
    """A plan on one device beside a better balanced split, and a split slower than one device, say so."""
    result = answered(TWO.with_(objective=Objective("latency")), 0, 0)
    assert result.baselines[BALANCED_SPLIT][1].value == 1.0
    assert verdict(result).startswith("This plan takes 2.0 times as long as the naive balanced split")
    worse = side_by_side([[1.0, 9.0], [1.0, 4.0]], ("accelerator", "accelerator"), Objective("latency"))
    said = verdict(answered(worse, 0, 1))
    assert "times as long as the single device" in said and "gain" not in said
    best = side_by_side([[1.0, 9.0]], ("accelerator", "accelerator"), Objective("latency"))
    assert verdict(place(best)) == "A split is not worth it: one device alone is the best answer found."


def test_one_device_that_the_rules_stretch_over_two_is_not_called_single() -> None:
    """Pins to two devices leave no single device, and the baseline says so."""
    pinned = side_by_side(
        [[1.0, 1.0]] * 4, ("accelerator", "accelerator"), PIPELINE, Rule("op0", "d0"), Rule("op1", "d1")
    )
    result = place(pinned)
    rows = {name: (value, remark) for name, value, remark in baseline_lines(result)}
    assert list(rows) == ["one device as far as the rules allow", REPLICAS, BALANCED_SPLIT, EVEN_LAYERS]
    assert rows[REPLICAS] == ("–", "no device may run every op") and rows[EVEN_LAYERS][0] == "–"
    assert SINGLE_DEVICE not in verdict(result) and "rules need more than one device" in verdict(result)


def test_nothing_is_the_bottleneck_of_a_model_that_costs_nothing() -> None:
    """Zero seconds, no bottleneck; and an unused device is called unused."""
    free = side_by_side([[0.0, 0.0]], ("accelerator", "accelerator"), PIPELINE)
    text = plain(result_view(place(free)))
    assert "bottleneck" not in text and "unused" in text
    idle = replace(use("d0"), ops=0)
    assert "bottleneck" not in plain(DeviceView(Judgement(1.0, (idle, use("d1")), (), bottleneck="d0")))


def test_a_host_that_seems_busier_than_the_latency_is_explained() -> None:
    """Two ops at once on a CPU: 2 s of load in 1 s of latency; a remark says why, and only then."""
    wide = side_by_side([[1.0, 5.0], [1.0, 5.0]], ("cpu", "accelerator"), Objective("latency", execution="subgraph"))
    result = answered(wide, 0, 0)
    assert result.value == 1.0
    assert result.judgement is not None and "several ops at once" in host_remark(wide, result.judgement)
    assert "d0 runs several ops at once" in plain(result_view(result))
    assert "at once" not in plain(result_view(place(TWO)))


def test_shared_stages_are_told_in_runs() -> None:
    """Who shares a stage: first and last of three or more in a row, and the seconds of synchronization if any."""
    nothing = DeviceUse("", 2, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 9.0)
    repeats = {"a1": "a0", "a2": "a0", "a3": "a0", "b2": "b0", "a4": "a0"}
    names = ("a0", "a1", "a2", "a3", "b0", "b1", "b2", "a4")
    uses = [
        replace(nothing, device=name, repeats=repeats.get(name, ""), sync=2e-3 * (name[0] == "a")) for name in names
    ]
    assert replica_lines(Judgement(1.0, tuple(uses), ())) == [
        "a0 – a3, a4 share one stage (×5), synchronization 2 ms per sample",
        "b0, b2 share one stage (×2)",
    ]


def test_devices_are_not_compared_with_one_another() -> None:
    """A thousand devices and a thousand links: names are compared a few times each, not once per pair."""
    count, names = 1_000, [Counted(f"d{number}") for number in range(1_000)]
    uses = tuple(replace(use(name), ops=int(number < count - 1)) for number, name in enumerate(names))
    wires = {Counted(f"wire{number}"): 0.1 for number in range(count)}
    judgement = Judgement(0.4444, uses, (), wires, bottleneck=Counted("d999"))
    Counted.compared = 0
    assert replica_lines(judgement) == []
    plain(DeviceView(judgement))
    assert Counted.compared < 20 * count


class Counted(str):
    """A name that counts how often one is compared."""

    compared = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str(self) == str(other)

    __hash__ = str.__hash__


def test_a_page_of_stages_without_collectives() -> None:
    """Copies of the whole model that compute alone: a row each, and nothing but compute."""
    plan = pw.place(
        "zoo:bert-base", "2xRTX-3060", dims={"layers": 1}, objective="throughput", tensor_parallel="any", placer="auto",
        budget=pw.Budget(iterations=1),
    )  # fmt: skip
    assert plan.placement is not None and plan.placement.stages
    assert "<html" in pw.report(plan)[:200]
