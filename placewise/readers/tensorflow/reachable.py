"""Select the nodes that run with the model, without those that initialize, save or restore it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from placewise.errors import ModelFileError
from placewise.readers.tensorflow.draft import has_gradient_scope
from placewise.readers.tensorflow.importer import INPUTS, VARIABLES, has_no_result
from placewise.readers.tensorflow.kinds import is_backward_kind
from placewise.readers.tensorflow.library import CALLS
from placewise.readers.tensorflow.nodes import Node, OutputRef

_SAVING = re.compile(
    r"Save|Restore|MergeV2Checkpoints|ShardedFilename|VarIsInitialized|IsVariableInitialized|.*Summary|"
    r"InitializeTable|LookupTableImport|DestroyResource|ReportUninitialized"
)
_SETTING = ("Assign", "AssignVariableOp", "MakeIterator")
_SAVES, _SETS, _WORKS = 1, 2, 4
_SOURCES = {"Const", *VARIABLES, *INPUTS}


def select_nodes(
    nodes: Sequence[Node], outputs: Sequence[OutputRef] | None
) -> tuple[list[Node], tuple[OutputRef, ...]]:
    """Return the nodes that a run needs, in order, and the model's outputs.

    `outputs` are those of a signature. Without a signature, they are the values that no node reads, except for those of
    initialization, saving, restoring and reporting. Raises ModelFileError for an output that no node produces.
    """
    by_name = {node.name: node for node in nodes}
    if outputs is not None:
        for ref in outputs:
            if ref.node not in by_name:
                raise ModelFileError(
                    f"nothing produces the model's output {ref.node!r}", remedy="export the model again"
                )
        kept = _find_ancestors(by_name, [ref.node for ref in outputs])
        return [node for node in nodes if node.name in kept], tuple(outputs)
    read = {name for node in nodes for name in _predecessors(node)}
    upkeep = _find_maintenance_nodes(nodes)
    ends = [node for node in nodes if node.name not in read and node.op not in _SOURCES and node.name not in upkeep]
    learns = any("Apply" in node.op for node in nodes)
    real = [
        node for node in ends if not (learns and _is_unused_gradient(node)) and not _only_reads_variable(by_name, node)
    ]
    kept = _find_ancestors(by_name, [node.name for node in real])
    return [node for node in nodes if node.name in kept], tuple(
        OutputRef(node.name, 0) for node in real if node.op != "NoOp"
    )


def _is_unused_gradient(node: Node) -> bool:
    """Whether a node that no node reads is a gradient without an optimizer (that of the data, say)."""
    return has_gradient_scope(node.name) and not has_no_result(node.op) and "Apply" not in node.op


def _only_reads_variable(by_name: Mapping[str, Node], node: Node) -> bool:
    """Whether a node only reads a variable."""
    return node.op in ("Identity", "ReadVariableOp") and all(by_name[r.node].op in VARIABLES for r in node.inputs)


def _find_maintenance_nodes(nodes: Sequence[Node]) -> set[str]:
    """Nodes downstream of saving or restoring, or of setting variables from neither training nor an input."""
    flags_of: dict[str, int] = {}
    for node in nodes:  # in topological order: predecessors have their flags
        flags = _SAVES if _SAVING.match(node.op) else _SETS if node.op in _SETTING else 0
        flags |= _WORKS if node.op in INPUTS or node.op in CALLS or is_backward_kind(node.op) else 0
        for name in _predecessors(node):
            flags |= flags_of.get(name, 0)
        flags_of[node.name] = flags
    return {name for name, flags in flags_of.items() if flags & _SAVES or flags & (_SETS | _WORKS) == _SETS}


def _predecessors(node: Node) -> tuple[str, ...]:
    return (*(ref.node for ref in node.inputs), *node.controls)


def _find_ancestors(by_name: Mapping[str, Node], ends: Iterable[str]) -> set[str]:
    """These nodes and all nodes upstream of them."""
    reached: set[str] = set()
    stack = list(ends)
    while stack:
        name = stack.pop()
        if name in reached or name not in by_name:
            continue
        reached.add(name)
        stack += _predecessors(by_name[name])
    return reached
