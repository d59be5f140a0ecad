"""Names and module paths of ops, from the metadata of exporters."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence

import onnx

from placewise.readers.base import module_path, unique_name

_NAME_SCOPES = "pkg.torch.onnx.name_scopes"  # torch.onnx.export(dynamo=True): list of paths; the last is the call
_NAMESPACE = "namespace"  # the same exporter: "path: class/path: class/…/call: target"
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # written by torch if it lost the path
_CALL_SUFFIX = re.compile(r"@\d+")  # a module's second call: "layer@1"


def op_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """A unique name per node: its own, or that of its first output if it has none or shares it."""
    count = Counter(node.name for node in nodes)
    taken = {name for name, times in count.items() if times == 1} - {""}
    names = []
    for index, node in enumerate(nodes):
        if node.name and count[node.name] == 1:
            names.append(node.name)
        else:
            names.append(unique_name(next(filter(None, node.output), f"{node.op_type}_{index}"), taken))
    return names


def kind_of(node: onnx.NodeProto) -> str:
    """``MatMul`` for the standard domain, ``domain::op_type`` for others."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def scope_of(node: onnx.NodeProto) -> str:
    """The module path, such as ``encoder.layer.3.attention``; "" if unknown."""
    notes = {entry.key: entry.value for entry in node.metadata_props}
    if _NAME_SCOPES in notes:
        return _from_name_scopes(notes[_NAME_SCOPES])
    if _NAMESPACE in notes:
        return _deepest([part.split(": ")[0] for part in notes[_NAMESPACE].split("/")[:-1]])
    return module_path(node.name)


def _from_name_scopes(text: str) -> str:
    try:
        scopes = ast.literal_eval(text[:10_000])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        return ""
    return _deepest(scopes[:-1])


def _deepest(scopes: list[str]) -> str:
    """The last path in a list from the model down to a module."""
    deepest = next((scope for scope in reversed(scopes) if scope not in ("", _NO_MODULE)), "")
    return _CALL_SUFFIX.sub("", deepest.strip())
