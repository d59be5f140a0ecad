"""The JSON Schemas of Placewise files (draft 2020-12), generated from their records."""

from __future__ import annotations

import json
import math
from typing import Any

from placewise.files.cluster_record import ClusterRecord
from placewise.files.corpus_file import CorpusFile
from placewise.files.costs_file import CostsHeader
from placewise.files.graph_file import GraphHeader
from placewise.files.plan_file import PlanFile
from placewise.files.policy_file import PolicyFile
from placewise.files.problem_file import ProblemHeader
from placewise.files.profile_file import ProfileFile
from placewise.files.records import Record
from placewise.files.sweep_file import SweepFile

RECORDS: dict[str, type[Record]] = {
    "cluster": ClusterRecord,
    "corpus": CorpusFile,
    "costs": CostsHeader,
    "graph": GraphHeader,
    "plan": PlanFile,
    "policy": PolicyFile,
    "problem": ProblemHeader,
    "profile": ProfileFile,
    "sweep": SweepFile,
}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a record in `RECORDS`. It describes accepted files; written files have all fields."""
    record = RECORDS[name]
    schema = _simplify(record.model_json_schema())
    schema["required"] = sorted({"format", "version", *schema.get("required", ())})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"placewise {name}", **schema}


def schema_text(name: str) -> str:
    """The schema as the text of a file in docs/schemas."""
    return json.dumps(schema_of(name), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _simplify(schema: Any) -> Any:
    """The schema without generated titles, with infinite defaults as null."""
    if isinstance(schema, list):
        return [_simplify(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _simplify(item) for key, item in schema.items() if key != "title" or not isinstance(item, str)}
    return None if schema == math.inf else schema
