"""What a round of fuzzing found, as JSON and as a table."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from fuzzing.pool import Done
from fuzzing.verdict import FAULT, kind_of

SLOWEST = 10


def document_of(done: list[Done], seed: int, seconds: float, processes: int) -> dict[str, Any]:
    """Counts by family, kinds of faults and the slowest cases."""
    families: dict[str, dict[str, Any]] = {}
    for one in sorted(done, key=lambda one: (one.family, one.number)):
        row = families.setdefault(
            one.family, {"cases": 0, "loaded": 0, "refused": 0, "fault": 0, "seconds": 0.0, "slowest": 0.0}
        )
        row["cases"] += 1
        row[one.verdict.outcome] += 1
        row["seconds"] = round(row["seconds"] + one.seconds, 4)
        row["slowest"] = round(max(row["slowest"], one.seconds), 3)
    faults = Counter(kind_of(one.verdict.words) for one in done if one.verdict.outcome == FAULT)
    slow = sorted(done, key=lambda one: -one.seconds)[:SLOWEST]
    return {
        "command": f"make fuzz CASES={len(done)} SEED={seed} REPORT=benchmarks/results/fuzz.json",
        "seed": seed,
        "cases": len(done),
        "seconds": round(seconds),
        "cores": os.cpu_count(),
        "processes": processes,
        "families": families,
        "faults": dict(faults),
        "slowest": [{"case": f"{one.family}:{one.number}", "seconds": round(one.seconds, 2)} for one in slow],
    }


def written(document: dict[str, Any], path: Path) -> None:
    """The document as .json, and a table of it as .md beside it."""
    document = document | {"command": document["command"].replace("fuzz.json", path.with_suffix(".json").name)}
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    head = "| family | cases | loaded | refused | faults | processor, s | slowest, s |\n|---|---|---|---|---|---|---|\n"
    rows = "".join(
        f"| {name} | {row['cases']} | {row['loaded']} | {row['refused']} | {row['fault']} "
        f"| {row['seconds']:.0f} | {row['slowest']:.2f} |\n"
        for name, row in document["families"].items()
    )
    slow = ", ".join(
        f"`{one['case']}` (seed {one.get('seed', document['seed'])}) {one['seconds']:.1f} s"
        for one in document["slowest"][:5]
    )
    faults = "".join(f"- {count} × {kind}\n" for kind, count in document["faults"].items()) or "None.\n"
    path.with_suffix(".md").write_text(
        f"""# Bad input

`{document["command"]}`: {document["cases"]} cases, {document["seconds"]} s; processes at
once: {document["processes"]}, cores: {document["cores"]}. A case is *loaded* where it goes through reading, pricing and
judging with figures that are figures (`options`: with a placement that keeps every rule, above its bound), *refused*
where one sentence of ours says why not, and at *fault* with anything else: a traceback, a word of a library, control
characters, more than 10 s of the processor, more than 2 GiB of memory.

{head}{rows}
Slowest: {slow}.
`PYTHONPATH=tests/helpers:tests python -m fuzzing --seed {document["seed"]} --repeat FAMILY:NUMBER` repeats one.

## Faults

{faults}""",
        "utf-8",
    )


def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """One document of rounds with different seeds: counts are sums, slowest cases those of all."""
    families: dict[str, dict[str, Any]] = {}
    for name, row in (item for document in documents for item in document["families"].items()):
        total = families.setdefault(name, dict.fromkeys(row, 0))
        for key, value in row.items():
            total[key] = max(total[key], value) if key == "slowest" else round(total[key] + value, 4)
    faults = sum((Counter(document["faults"]) for document in documents), Counter[str]())
    slow = [one | {"seed": document["seed"]} for document in documents for one in document["slowest"]]
    commands = [document["command"] for document in documents]
    return documents[0] | {
        "command": "; ".join(commands),
        "seeds": [document["seed"] for document in documents],
        **{key: sum(document[key] for document in documents) for key in ("cases", "seconds")},
        "families": dict(sorted(families.items())),
        "faults": dict(faults),
        "slowest": sorted(slow, key=lambda one: -one["seconds"])[:SLOWEST],
    }
