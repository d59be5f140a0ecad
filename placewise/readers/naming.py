"""Names as every reader needs them: distinct ones, and module paths out of paths."""

from __future__ import annotations


def distinct(name: str, taken: set[str]) -> str:
    """`name`, with a number behind it where it is taken; the answer is then taken too."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    taken.add(free)
    return free


def path_of(name: str) -> str:
    """``/layer1/layer1.0/conv1/Conv`` → ``layer1.0.conv1``: exporters repeat a container's name in its children."""
    path: list[str] = []
    for part in filter(None, name.split("/")[:-1]):
        if path and part.startswith(path[-1] + "."):
            path.pop()
        path.append(part)
    return ".".join(path)
