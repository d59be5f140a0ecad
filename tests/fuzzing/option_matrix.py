"""Options and rules in every combination, through the public interface and the command line, on tiny models.

Whatever is asked, the answer keeps every rule by the judge and lies above its bound, or is one sentence.
"""

from __future__ import annotations

import io
import json
import logging
import math
import signal
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

import placewise as pw
from fuzzing.case_result import Unsound, find_flaw
from fuzzing.seeds import MODEL, PHASED, PIPER, WORKLOAD, Seed
from fuzzing.texts import CLUSTERS, TIMES_CSV
from fuzzing.tokens import NUMBERS, TEXTS
from placewise._util.option_table import PROBLEM_OPTIONS, OptionInfo
from placewise.cli import main
from placewise.core.target_rules import TARGETS as RULES
from placewise.errors import MissingExtraError, PlacewiseError
from placewise.exporters import registry as exporters
from placewise.placers import registry

Values = Mapping[str, tuple[Any, ...]]
_NAMES = ("", "a", "op0", "op1", "op4", r"^op[0-2]$", "layer.0", r"layer\.\d", ".", "nothing", "conv", "node")
_DEVICES = ("cuda:0", "cuda:1", "cpu", "acc0", "acc1", "acc2", "host", "cuda:9", "*", "")
_LEARNED = ("colocrl", "doppler", "gdp", "hdp", "hsdag", "placeto")
PLACERS = ("auto", *(name for name in registry.known_names() if name not in (*_LEARNED, "auto")))
"""Those that need no PyTorch, whose import takes longer than all the rest."""
TARGETS = tuple(name for name in RULES if name not in ("pipelining", "device-map"))
"""Tools that need no PyTorch."""
_SLOW = ("local", "temper", "windows", "multilevel", "cover", "cpsat", "auto")
"""Placers that may take as long as they are given."""

SANE: Values = {
    "objective": ("latency", "throughput", None),
    "execution": ("operator", "contention-free", "subgraph", "sequential"),
    "communication": ("blocking", "overlap", "duplex"),
    "memory": ("live", "sum"),
    "contiguous": (True, False, None),
    "convex": (True, False),
    "in_order": (True, False),
    "replicas": (1, 2, 3, "any", "0", 0),
    "tensor_parallel": (1, 2, "any", 0, 64),
    "sequence_parallel": (True, False),
    "recompute": ("auto", "never", "always"),
    "microbatches": (1, 6, 32, 1 << 24),
    "step_samples": (0, 1, 8, 1 << 20),
    "schedule": ("1f1b", "gpipe"),
    "graph": ("inference", "training"),
    "optimizer": ("sgd", "momentum", "adam"),
    "freeze": ("w", ("w0",), (), ("b.*", ".")),
    "dims": ({"batch": 1}, {"batch": 8}, {"batch": 3, "n_ops": 6}, {"n_ops": 5, "unknown": 2}, {}),
    "view": ("folded", "raw"),
    "dtype": ("bfloat16", "float32", "int8"),
    "precision": ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4"),
    "tf32": (True, False),
    "cache": (True, False),
    "costs": ("times.csv", ["times.csv"], ("cuda:0=times.csv",), "*=times.csv", ["cpu=times.csv", "times.csv"], ()),
    "pins": (),
    "forbid": (),
    "unsupported": (("MatMul", "cuda:0"), ("Relu", "acc1"), (".", "cpu")),
    "together": ("layer", (r"layer\.\d+",), [("op0", "op3")], [("op0", "op1"), ("op1", "op4")], ["."], "MatMul", ()),
    "headroom": ("10%", 0.25, "0%", "1KiB", "1GiB", ["5%", "cuda:0=10%"], {"acc0": "64B", "acc1": 0.5}, 0.99),
    "max_memory": ({"acc0": 100}, {"cuda:0": "1KiB", "cpu": "60GiB"}, {"acc1": 0}, {0: "20GiB"}, {"cpu": "200B"}),
    "exclude": ("cuda:1", ("acc0",), "cpu", r"acc\d", ()),
    "offload": (True, False),
    "supported": (("MatMul|Relu|Add", "cuda:0"), ("MatMul", "acc1"), (".*", "cpu")),
}
"""What people ask for, and contradictions among it; rules are drawn from names and devices."""
ODD = (
    *NUMBERS, *TEXTS, "9" * 40, True, False, None, b"bytes", 1j, object(), (), [], {}, [None], [[]], {"": ""},
    {None: None}, {"a": float("nan")}, [("a",)], [("a", "b", "c")], [(1, 2)], {1: 2}, {"batch": "x"}, {"batch": 1e9},
    np.float64("nan"), np.int64(3), np.bool_(True), np.array([1, 2]), np.array(None), Path("x"), {"a"}, range(3),
    iter(()), len, int, "10%%", "-5%", "1e400", "1e400GiB", "inf", "-inf", "infGiB", "60s", "0x10", "٣", "½",
)  # fmt: skip
"""What nobody should ask for."""
_LIMITS: Values = {
    "time_limit": (0.05, "50ms", 0, "0s", 0.2, "0.1"),
    "gap": (0.0, "1%", 0.5, 1, "100%", "50 %"),
    "seed": (0, 1, 7, 2**31 - 1),
    "threads": (1, 2, None, 64),
}
_PLACER_OPTIONS = (
    {"method": "line"}, {"method": "x"}, {"nothing": 1}, {"draws": 3}, {"max_ideals": 1}, {"max_ideals": -1},
    {"steps": 0}, {"restarts": 10**40}, {"max_placements": 2}, {"priority": "critical_path"}, {"favourites": "yes"},
)  # fmt: skip


def graph(rng: Random) -> pw.Graph:
    """Five ops: a chain, a diamond, or ops that nothing joins; some have weights, state, or a group of their own."""
    builder = pw.GraphBuilder()
    shape, rows = rng.choice(("chain", "diamond", "apart")), rng.choice((4, 4, 1 << 20, 0))
    tensors = [builder.add_tensor(-1, shape=(rows, 4), dtype="float32")]
    for op in range(5):
        inputs = {"chain": tensors[-1:], "diamond": [*{tensors[min(op, 1)], tensors[-1]}], "apart": tensors[:1]}[shape]
        kind = "Add" if len(inputs) == 2 else rng.choice(("MatMul", "Relu"))
        made = builder.add_op(
            f"op{op}", kind, scope=f"layer.{op // 2}", dtype="float32",
            group=0 if rng.random() < 0.15 else -1, state_bytes=rng.choice((0, 0, 64)),
        )  # fmt: skip
        for value in inputs:
            builder.add_edge(value, made)
        if kind == "MatMul":
            builder.use_weight(builder.add_weight(f"w{op}", shape=(4, 4), dtype="float32"), made)
        tensors.append(builder.add_tensor(made, shape=(rows, 4), dtype="float32", output=op == 4))
    return builder.build()


def cluster(rng: Random) -> pw.Cluster:
    """Two or three accelerators that may be equal, small, or many-streamed, and a CPU or none."""
    equal = rng.random() < 0.5
    kinds = [
        {
            "memory": rng.choice((math.inf, 1e9, 200.0, 64.0)), "streams": rng.choice((1, 2, 5)),
            "call_overhead": rng.choice((0.0, 1e-4)), "op_overhead": rng.choice((0.0, 1e-5)),
            "available": rng.random() > 0.05, "unsupported": frozenset(rng.choice(((), (), ("Relu",)))),
        }
        for _ in range(3)
    ]  # fmt: skip
    speeds: dict[str, Any] = {"peak_flops": {"float32": 1e12}, "memory_bandwidth": 1e11}
    count = rng.choice((2, 3))
    devices = [pw.Device(f"acc{n}", **speeds, **(kinds[0] if equal else kinds[n])) for n in range(count)]
    if rng.random() < 0.7:
        devices.append(pw.Device("cpu", "cpu", **speeds))
    ends = [*(device.name for device in devices if not device.is_host), "host"]
    shared = rng.choice(("", "bus"))
    links = tuple(pw.Link(a, b, rng.choice((1e10, 1e6)), shared=shared) for a in ends for b in ends if a != b)
    return pw.Cluster(tuple(devices), links, rng.choice(("direct", "staged")))


def journey(path: Path, seed: Seed, rng: Random) -> None:
    """One question: half of them ask nothing odd, a quarter goes through the command line."""
    share = rng.choice((0.0, 0.15, 0.4))
    path.with_name("devices.toml").write_text(rng.choice(CLUSTERS), "utf-8")
    path.with_name("times.csv").write_bytes(TIMES_CSV)
    if rng.random() < 0.25:
        _typed(rng, share)
        return
    model, devices, dims = rng.choice((_own, _named))(rng)
    options = _options(rng, share)
    if dims and "dims" not in options:
        options["dims"] = dims
    if share and rng.random() < 0.2:
        if rng.random() < 0.5:
            model = rng.choice(ODD)
        else:
            devices = rng.choice(ODD)
    verb = rng.choice((_place, _place, _place, _place, _compare, _question_plan, _read))
    verb(rng, share, model, devices, options)


def _own(rng: Random) -> tuple[Any, Any, dict[str, int]]:
    return graph(rng), cluster(rng), {}


def _named(rng: Random) -> tuple[Any, Any, dict[str, int]]:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice((WORKLOAD, PIPER)), None, {}
    devices = rng.choice(("2xL4,cpu", "cpu", "3xL4", "devices.toml", {"cuda:0": "1GiB", "cpu": 1e9}, "2xL4,cpu"))
    if kind == 1:
        return PHASED, devices, {}
    if kind == 2:
        return rng.choice(("zoo:random-layered", "zoo:random-branchy")), devices, {"n_ops": rng.choice((1, 5, 9))}
    return MODEL, devices, {"batch": 2}


def _options(rng: Random, odd: float) -> dict[str, Any]:
    """Some options, each of them with this chance no value that there should be."""
    names = rng.sample([*SANE], rng.choice((0, 1, 2, 3, 4, 6, 9)))
    chosen = {name: rng.choice(ODD) if rng.random() < odd else _sane(rng, name) for name in names}
    if rng.random() < odd / 4:
        chosen[rng.choice(("objectiv", "nothing", "pin", "--dim", "x" * 3_000, "\x1b[31m"))] = rng.choice(ODD)
    return chosen


def _sane(rng: Random, name: str) -> Any:
    if name in ("pins", "forbid"):
        rules = [(rng.choice(_NAMES), rng.choice(_DEVICES)) for _ in range(rng.choice((1, 1, 2, 4)))]
        return rng.choice((tuple(rules), dict(rules)))
    if name in ("supported", "unsupported"):
        return (rng.choice(SANE[name]),)
    return rng.choice(SANE[name])


def _limits(rng: Random, odd: float, placer: Any) -> dict[str, Any]:
    limits = {name: rng.choice(values) for name, values in _LIMITS.items() if rng.random() < 0.4}
    if rng.random() < odd:
        name = rng.choice([*_LIMITS, "budget"])
        limits[name] = rng.choice(ODD)
    endless = not isinstance(placer, str) or placer not in PLACERS or placer in _SLOW
    finite = 0 <= _read_number(limits.get("time_limit", "inf")) < 100
    limit = limits.get("time_limit")
    unlimited = limit is None or (isinstance(limit, (str, float)) and limit in (math.inf, "inf"))
    if endless and not finite and (unlimited or "budget" in limits):
        limits["time_limit"] = 0.2
        limits.pop("budget", None)
    elif endless and not finite:
        limits["budget"] = 0.2
    return limits


def _place(rng: Random, odd: float, model: Any, devices: Any, options: dict[str, Any]) -> None:
    placer = rng.choice(ODD) if rng.random() < odd / 4 else rng.choice(PLACERS)
    more: dict[str, Any] = _limits(rng, odd, placer)
    if rng.random() < 0.15:
        more["options"] = rng.choice(ODD) if rng.random() < odd else rng.choice(_PLACER_OPTIONS)
    if rng.random() < odd / 4:
        more["start"] = rng.choice(ODD)
    if rng.random() < 0.15:
        more["target"] = rng.choice(ODD) if rng.random() < odd else rng.choice(TARGETS)
    plan = pw.place(model, devices, placer=placer, **more, **options)
    require_answer(plan.result)
    plan.summary, plan.status, repr(plan), plan._repr_html_(), plan.timeline
    if rng.random() < 0.2 and "target" not in more:
        _require_exact(plan.result)
    if "target" in more and plan.placement is not None:
        _require_kept(plan, more["target"])


def _require_kept(plan: Any, target: str) -> None:
    """The files for the tool that a plan was made for express it as it is; what keeps no file is told before."""
    try:
        made = pw.export(plan, target, model=plan.problem)
    except MissingExtraError:
        return
    if made.projected:
        raise Unsound(f"a plan for {target} is changed when it is exported to it")


def _compare(rng: Random, odd: float, model: Any, devices: Any, options: dict[str, Any]) -> None:
    names: Any = rng.sample(PLACERS, rng.choice((1, 2, 4)))
    names = rng.choice(ODD) if rng.random() < odd / 4 else rng.choice((names, ",".join(names)))
    if isinstance(names, str) and not names.strip(" ,"):
        names = "x"  # none are all, and some of them need PyTorch
    board = pw.compare(model, devices, placers=names, **_limits(rng, odd, "auto"), **options)
    for entry in board.entries:
        if entry.result is not None:
            require_answer(entry.result)
    for form in ("table", "csv", "json", "markdown"):
        board.text(form)


def _question_plan(rng: Random, odd: float, model: Any, devices: Any, options: dict[str, Any]) -> None:
    """A plan of a cheap placer, and what may be asked of it."""
    plan = pw.place(model, devices, placer=rng.choice(("heft", "etf", "single", "random")), **options)
    require_answer(plan.result)
    problem = plan.problem
    other = pw.Placement(np.array([rng.randrange(problem.n_devices) for _ in range(problem.n_ops)]))
    judged(problem, other)
    pw.check(problem, other)
    wrong: Any = rng.choice(ODD) if rng.random() < odd else None
    queried: Any = plan if wrong is None or rng.random() < 0.5 else wrong
    more = {rng.choice([*SANE]): wrong} if wrong is not None and rng.random() < 0.3 else {}
    op = rng.choice(_NAMES) if wrong is None else wrong
    verb = rng.randrange(7)
    if verb == 0:
        pw.judge(model, queried, **more)
    elif verb == 1:
        pw.check(problem, wrong if wrong is not None else plan, **more)
    elif verb == 2:
        to = rng.choice(exporters.names()) if wrong is None or rng.random() < 0.7 else wrong
        pw.export(queried, to, rng.choice((None, "exported")), options=rng.choice((None, wrong, {"x": 1})), **more)
    elif verb == 3:
        away = rng.choice(_DEVICES) if wrong is None or rng.random() < 0.5 else wrong
        pw.explain(queried, op, away, placer=rng.choice(("heft", "single")), time_limit=0.2, **more).summary  # noqa: B018
    elif verb == 4:
        pw.diff(plan, queried, **more).summary  # noqa: B018
    elif verb == 5:
        pw.report(queried, wrong if not isinstance(wrong, (str, Path)) else None, **more)
    elif wrong is not None and not isinstance(wrong, (str, Path)):
        plan.save(wrong)
    else:
        plan.save("plan.json")
        try:
            found = pw.judge(model, "plan.json", None if problem is model else devices, **more)
        finally:
            Path("plan.json").unlink()
        if not more and plan.placement is not None and not _near(found.value, plan.value):
            raise Unsound(f"the plan is judged {found.value}, after it is saved, and was {plan.value}")


def _read(rng: Random, odd: float, model: Any, devices: Any, options: dict[str, Any]) -> None:
    """Models, devices and bounds without a placement."""
    verb = rng.randrange(4)
    if verb == 0:
        pw.inspect(model, depth=rng.choice(ODD) if rng.random() < odd else rng.choice((0, 1, 2, 9)), **options)
    elif verb == 1:
        pw.read_model(model, **options)
    elif verb == 2:
        pw.read_cluster(devices)
    else:
        problem = pw.build(model, devices, pw.ProblemOptions(**{k: v for k, v in options.items() if k in SANE}))
        bound = pw.lower_bound(problem)
        if math.isnan(bound.value) or bound.value < 0:
            raise Unsound(f"the bound is {bound}")


def judged(problem: Any, placement: Any) -> Any:
    """The judge's figures, which are figures."""
    found = pw.judge(problem, placement)
    if math.isnan(found.value) or found.value < 0:
        raise Unsound(f"the value is {found.value}")
    return found


def require_answer(result: Any) -> None:
    """A placement keeps every rule, has the value that the judge says, and its bound is no higher."""
    bound = result.bound.value
    if math.isnan(bound) or bound < 0:
        raise Unsound(f"the bound is {bound}")
    if result.placement is None:
        return
    found = judged(result.problem, result.placement)
    if found.violations:
        raise Unsound(f"{result.placer} breaks a rule: {found.violations[0]}")
    if not _near(found.value, result.judgement.value):
        raise Unsound(f"{result.placer} says {result.judgement.value}, the judge {found.value}")
    if bound > found.value * (1 + 1e-6) + 1e-15:
        raise Unsound(f"{result.placer}: the bound {bound} is above the value {found.value}")


def _require_exact(result: Any) -> None:
    """What every placement of a tiny problem says against a bound, or against the proof that there is none."""
    problem = result.problem
    if problem.n_devices**problem.n_ops > 100_000:
        return
    try:
        best = pw.place(problem, placer="exhaustive").result
    except PlacewiseError:
        return
    require_answer(best)
    if best.placement is None:
        if result.placement is not None and best.status.outcome == "infeasible":
            raise Unsound(f"{result.placer} places what exhaustive calls infeasible")
        return
    if result.status.outcome == "infeasible":
        raise Unsound(f"{result.placer} calls infeasible what can be placed")
    if result.bound.value > best.judgement.value * (1 + 1e-6) + 1e-15:
        raise Unsound(f"{result.placer}: the bound {result.bound} is above {best.judgement.value}, a value")


def _near(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-18)


def _typed(rng: Random, odd: float) -> None:
    """The same as words of a command line: an exit code that is documented, and no more than one sentence of error."""
    model, devices, dims = _named(rng)
    given = "acc0=1GiB,cpu" if isinstance(devices, dict) else devices
    verb = rng.choice(("place", "place", "place", "compare", "inspect", "judge", "explain", "export", "devices"))
    words = [verb, *(["plan.json"] if verb in ("explain", "export") else [given or "cpu"] if verb == "devices" else
                     [model, "plan.json"] if verb == "judge" else [model])]  # fmt: skip
    if verb in ("judge", "explain", "export"):
        kept = pw.place(model, devices, placer="heft", dims=dims)
        kept.save("plan.json")
        words += {"judge": [], "explain": [rng.choice(_NAMES)], "export": ["--to", rng.choice(exporters.names())]}[verb]
    elif given and verb not in ("devices", "inspect"):
        words += ["-d", given]
    for name, size in dims.items() if verb in ("place", "compare", "inspect") else ():
        words += ["--dim", f"{name}={size}"]
    if verb in ("place", "compare"):
        key = "--placer" if verb == "place" else "--placers"
        words += [key, rng.choice(PLACERS[1:]), "--time-limit", _limit(rng) if rng.random() < odd / 4 else "0.2s"]
        words += ["--threads", _odd_word(rng)] if rng.random() < odd / 3 else []
    for option in rng.sample(PROBLEM_OPTIONS, rng.choice((0, 1, 2, 4))) if verb != "devices" else ():
        words += _flag(rng, option, odd)
    if rng.random() < odd / 3:
        words.insert(rng.randrange(1, len(words) + 1), _odd_word(rng))
    words += rng.choice(([], ["--json"], ["-q"]))
    run_command(words)


def _flag(rng: Random, option: OptionInfo, odd: float) -> list[str]:
    if option.kind in ("switch", "negation", "either"):
        return [rng.choice(option.flag.split("/"))]
    if rng.random() < odd:
        return [option.flag, _odd_word(rng)]
    if option.kind == "rules":
        return [option.flag, f"{rng.choice(_NAMES)}={rng.choice(_DEVICES)}"]
    value = rng.choice(SANE.get(option.name) or ("x",))
    if isinstance(value, dict):
        return [word for key, amount in value.items() for word in (option.flag, f"{key}={amount}")]
    if isinstance(value, (tuple, list)):
        return [word for item in value if isinstance(item, str) for word in (option.flag, item)]
    return [] if value is None else [option.flag, str(value)]


def _limit(rng: Random) -> str:
    """An odd time limit, but none for which a search would rightly go on for minutes."""
    word = _odd_word(rng)
    return "0.2s" if _read_number(word) > 10 else word


def _read_number(limit: Any) -> float:
    """The figure of a time limit without its unit; NaN if it has none."""
    try:
        return float(str(limit).removesuffix("s").removesuffix("m"))
    except ValueError:
        return math.nan


def _odd_word(rng: Random) -> str:
    """An argument as a shell can pass it."""
    kind = rng.randrange(3)
    word = (
        rng.choice(TEXTS) if kind == 0 else str(rng.choice(NUMBERS[:28])) if kind == 1 else str(rng.choice(ODD[-40:]))
    )
    if rng.random() < 0.4:
        word = f"{rng.choice(('a', 'batch', 'cuda:0', ''))}={word}"
    return word.replace("\x00", "")[:5_000]


def run_command(words: list[str]) -> None:
    """Run a command in this process; Unsound for an exit code or an error that is none of ours."""
    out, err = io.StringIO(), io.StringIO()
    log, keys = logging.getLogger("placewise"), signal.getsignal(signal.SIGINT)
    before = log.handlers, log.level, log.propagate
    code: Any = 0
    try:
        with patch.object(sys, "argv", ["placewise", *words]), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        signal.signal(signal.SIGINT, keys)
        log.handlers, log.propagate = before[0], before[2]
        log.setLevel(before[1])
    if code not in (0, 2, 3, 4):
        raise Unsound(f"{words!r:.1000} ends with {code}: {err.getvalue():.2000}")
    errors = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
    if "Traceback" in out.getvalue() + err.getvalue():
        raise Unsound(f"{words!r:.1000}: {err.getvalue():.2000}")
    if code == 2 and "Usage: " not in err.getvalue() and (len(errors) != 1 or find_flaw(errors[0])):
        raise Unsound(f"{words!r:.1000} is refused with {err.getvalue()!r:.2000}")
    if code == 0 and "--json" in words:
        json.loads(out.getvalue())
