"""Tests share the traces of transformers' models: the same model at the same sizes is traced once in a process."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import wraps
from itertools import chain
from typing import Any

import pytest

from placewise.model.graph import Graph, Source

READER = "placewise.readers.huggingface.reader"
MOST = 200
"""Graphs that are kept."""
_TRACED: dict[str, Graph] = {}


def share_traces() -> None:
    """Keep what the reader traces from now on, if somebody has imported it."""
    reader: Any = sys.modules.get(READER)
    if reader is None or hasattr(reader._trace_graph, "__wrapped__"):
        return
    trace = reader._trace_graph

    @wraps(trace)
    def traced(instance: Any, dims: Any, source: Source, once: bool) -> Graph:
        key = json.dumps([_describe(instance), asdict(dims), once], sort_keys=True, default=str)
        if key not in _TRACED:
            if len(_TRACED) == MOST:
                del _TRACED[next(iter(_TRACED))]
            _TRACED[key] = trace(instance, dims, source, once)
        return _TRACED[key].with_source(source)

    reader._trace_graph = traced


def trace_again(patch: pytest.MonkeyPatch) -> None:
    """Let the reader trace every model, also one that another test has read."""
    share_traces()
    reader: Any = sys.modules.get(READER)
    if reader is not None:
        patch.setattr(reader, "_trace_graph", reader._trace_graph.__wrapped__)


def _describe(instance: Any) -> list[Any]:
    """What a trace depends on: the configuration, the classes of all modules, and their weights, tied or not."""
    module, config, number = instance.module, instance.config, dict[int, int]()
    weights = [
        (name, list(weight.shape), str(weight.dtype), number.setdefault(id(weight), len(number)))
        for name, weight in chain(module.named_parameters(remove_duplicate=False), module.named_buffers())
    ]
    classes = [(name, type(part).__name__) for name, part in module.named_modules()]
    attention = getattr(config, "_attn_implementation", None)
    return [config.to_dict(), attention, classes, weights, instance.task, instance.dtype]
