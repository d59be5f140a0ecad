"""How kernels are compiled: what only kernels call has no way in from Python."""

from __future__ import annotations

import ast
from pathlib import Path

import placewise

HELPERS = {"helper", "lean_helper", "inlined", "spliced"}
COMPILED = {*HELPERS, "kernel", "lean_kernel"}


def marks(node: ast.AST) -> set[str]:
    """The names of a function's decorators."""
    return {mark.id for mark in getattr(node, "decorator_list", ()) if isinstance(mark, ast.Name)}


def called_from_python(tree: ast.Module, helpers: set[str]) -> list[str]:
    """The helpers that functions name which are not compiled themselves."""
    found, todo = [], list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef) and marks(node) & COMPILED:
            continue
        if isinstance(node, ast.Name) and node.id in helpers:
            found.append(f"{node.id}, line {node.lineno}")
        todo += ast.iter_child_nodes(node)
    return found


def test_python_never_calls_what_only_kernels_may() -> None:
    """No function that is not compiled calls a helper, which would end the process: helpers lack that entry."""
    root = Path(placewise.__file__).parent
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py"))}
    own = {
        path: {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and marks(node) & HELPERS}
        for path, tree in trees.items()
    }
    module = {".".join(path.relative_to(root.parent).with_suffix("").parts): path for path in trees}
    assert sum(map(len, own.values())) > 100
    for path, tree in trees.items():
        helpers = set(own[path])
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in module:
                names = own[module[node.module]]
                helpers |= {alias.asname or alias.name for alias in node.names if alias.name in names}
        assert not called_from_python(tree, helpers), path
