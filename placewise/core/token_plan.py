"""Sequence parallelism in the terms of PyTorch: where modules gather, scatter and slice tokens.

The result belongs to the document of `parallel_plan.py`, which `readers/torch/parallel_model.py` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from placewise.errors import ExportError
from placewise.model.columns import Bools
from placewise.model.graph import Graph
from placewise.model.sharding import Sharding
from placewise.model.tables import RESHAPES

_ELEMENTWISE = frozenset(("Add", "Sub", "Mul", "Div", "Cast", "Identity", "Dropout", "Relu", "Gelu", "Neg", "Sqrt"))
"""Kinds that run on some tokens outside of modules, too: no length is written into such a call."""
LOSS = "Loss"
"""The kind of the op that stands for what compares a model's results with what they should be."""
_VIEWS = frozenset((*RESHAPES, "Identity", "Cast"))


def find_token_tensors(graph: Graph, sharding: Sharding) -> Bools:
    """Which tensors [n_tensors] are split by tokens."""
    found = np.zeros(graph.n_tensors, np.bool_)
    for each in sharding.collectives:
        if each.kind == "reduce-scatter" and not each.backward:
            found[each.tensor] = True
    for op in np.flatnonzero(~graph.ops.backward).tolist():
        if sharding.style_of(op) == "tokens":
            found[graph.outputs_of(op)] = True
    return found & (sharding.split >= 0)


def describe_tokens(
    graph: Graph,
    sharding: Sharding,
    splits: Mapping[str, dict[str, Any]],
    stage: Sequence[int],
    whole: Sequence[str],
) -> dict[str, Any]:
    """What modules do with tokens, beside their splits; `splits` get the dimension along which they scatter sums.

    `gathers`: by path of a module, the shape and split dimension of what it takes by tokens and needs whole, and
    whether its gradient is a summand. `slices`: modules that make a whole value of which others take their tokens;
    `calls`: the same of calls outside of modules; `results`: modules that make a result of the model, and gather it;
    all with the dimension of tokens. `values`: that dimension of what goes on to another stage, by call. `whole` are
    the paths of the modules that stages call.

    Raises ExportError where a module cannot be split so.
    """
    plan = _TokenPlan(graph, sharding, whole)
    is_loss = graph.ops.kind.equals(LOSS)
    sums = [path for path, split in splits.items() if split["style"] in ("rowwise", "embedding")]
    for path, made in plan.list_made(sums).items():
        splits[path]["scatters"] = plan.find_scatter(path, made)
    for tensor in np.flatnonzero(plan.by_token).tolist():
        if graph.tensors.output[tensor] or is_loss[plan.readers[tensor]].any():
            plan.add_result(tensor)
            continue
        for reader in plan.readers[tensor]:
            if sharding.style_of(reader) != "tokens":
                plan.add_gather(tensor, reader, splits)
    plan.require_distinct()
    for op in np.flatnonzero(~graph.ops.backward).tolist():
        if sharding.style_of(op) == "tokens" and not is_loss[op]:
            plan.add_slices(op)
            plan.require_elementwise(op)
    return {
        "gathers": plan.gathers,
        "slices": plan.slices,
        "results": plan.results,
        "calls": plan.calls,
        "values": plan.find_values(stage),
    }


class _TokenPlan:
    def __init__(self, graph: Graph, sharding: Sharding, whole: Sequence[str]) -> None:
        self.graph, self.sharding, self.whole = graph, sharding, whole
        self.by_token = find_token_tensors(graph, sharding)
        late = graph.ops.backward
        self.readers = [
            [op for op in graph.consumers_of(tensor).tolist() if not late[op]] for tensor in range(graph.n_tensors)
        ]
        self.gathers: dict[str, list[dict[str, Any]]] = {}
        self.gathered: dict[str, set[int]] = {}
        self.slices: dict[str, int] = {}
        self.results: dict[str, int] = {}
        self.calls: dict[str, int] = {}

    def list_made(self, paths: Sequence[str]) -> dict[str, list[int]]:
        """By path, the tensors that are made in a module and read outside of it."""
        graph, made = self.graph, {path: list[int]() for path in paths}
        for tensor, maker in enumerate(graph.tensors.producer.tolist()):
            if maker < 0 or graph.ops.backward[maker]:
                continue
            parts = graph.ops.scope[maker].split(".")
            around = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
            for path in around & made.keys():
                if any(not self._is_in(op, path) for op in self.readers[tensor]):
                    made[path].append(tensor)
        return made

    def find_scatter(self, path: str, made: Sequence[int]) -> int:
        """The dimension of tokens of what a module makes that sums; −1 for a single token, whose sum is whole."""
        if len(made) != 1:
            raise ExportError(f"what {path!r} makes cannot be scattered by tokens: it is not one tensor")
        shape = self.graph.tensors.shape[made[0]]
        divides = len(shape) in (2, 3) and shape[-2] > 1 and shape[-2] % self.sharding.degree == 0
        return len(shape) - 2 if divides else -1

    def add_gather(self, tensor: int, reader: int, splits: Mapping[str, dict[str, Any]]) -> None:
        """Let the outermost module that needs all of a tensor gather it."""
        scope, sharding = self.graph.ops.scope[reader], self.sharding
        source = tensor
        while True:
            module = next((path for path in self._modules_around(scope) if self._is_whole_in(source, path)), "")
            maker = int(self.graph.tensors.producer[source])
            if module or maker < 0 or self.graph.ops.kind[maker] not in _VIEWS:
                break
            source = int(self.graph.inputs_of(maker)[0])
        if not module:
            name = scope or self.graph.ops.name[reader]
            raise ExportError(f"{name!r} needs all tokens of a value that it also takes by tokens, in one module")
        split = {sharding.share[op] < 1 for op in self._needing(source, module)}
        if len(split) > 1:
            raise ExportError(f"{module!r} needs all tokens in split and in whole products, whose gradients differ")
        entry = {
            "shape": list(map(int, self.graph.tensors.shape[source])),
            "dim": int(sharding.split[source]),
            "sums": split == {True},
        }
        self.gathered.setdefault(module, set()).add(source)
        entries = self.gathers.setdefault(module, [])
        if entry not in entries:
            entries.append(entry)
        if sharding.style_of(reader) == "colwise" and scope in splits:
            splits[scope]["summands"] = True

    def require_distinct(self) -> None:
        """Raise ExportError where a module takes values of one shape, which tells its arguments, in several layouts."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for tensor, shape in enumerate(self.graph.tensors.shape):
            alike.setdefault(tuple(shape), []).append(tensor)
        for path, entries in self.gathers.items():
            shapes = [tuple(entry["shape"]) for entry in entries]
            others = {tensor for shape in shapes for tensor in alike[shape]} - self.gathered[path]
            if len(set(shapes)) < len(shapes) or any(self._enters(tensor, path) for tensor in others):
                raise ExportError(
                    f"{path!r} takes values of equal shape, some whole and some split by tokens",
                    remedy="leave out --sequence-parallel",
                )

    def add_slices(self, op: int) -> None:
        """Let modules and calls that make whole values hand on the tokens of each device, where an op takes them."""
        graph, sharding = self.graph, self.sharding
        out = int(graph.outputs_of(op)[0])
        shape, dim = graph.tensors.shape[out], int(sharding.split[out])
        name = graph.ops.scope[op] or graph.ops.name[op]
        for weight in graph.weights_of(op).tolist():
            if sharding.weight_split[weight] < 0:
                continue
            called, own = graph.weights.name[weight], int(sharding.weight_split[weight])
            if "." in called or self._is_inside(op):
                raise ExportError(f"{name!r} takes its tokens of a weight, which no style of PyTorch does")
            self.calls[called] = own  # a call of weights alone, which was folded
        for tensor in graph.inputs_of(op).tolist():
            place = dim - len(shape) + len(graph.tensors.shape[tensor])
            takes_part = place >= 0 and graph.tensors.shape[tensor][place] == shape[dim] > 1
            if self.by_token[tensor] or not takes_part or graph.ops.kind[op] in _VIEWS:
                continue
            module = self._module_of(tensor, op)
            if not module or any(sharding.style_of(reader) != "tokens" for reader in self.readers[tensor]):
                raise ExportError(
                    f"{name!r} takes its tokens of a value that is whole, which no module of the model does"
                )
            self.slices[module] = place

    def add_result(self, tensor: int) -> None:
        """Let the module that makes a result of the model gather it."""
        graph, maker = self.graph, int(self.graph.tensors.producer[tensor])
        module = next(iter(self._modules_around(graph.ops.scope[maker])), "")
        if not module or any(graph.ops.kind[reader] != LOSS for reader in self.readers[tensor]):
            raise ExportError(
                f"the result {graph.ops.name[maker]!r} of the model is split by tokens, and no module gathers it"
            )
        self.results[module] = int(self.sharding.split[tensor])

    def require_elementwise(self, op: int) -> None:
        """Raise ExportError for an op outside of modules whose call has the number of all tokens in it."""
        graph = self.graph
        if not self._is_inside(op) and graph.ops.kind[op] not in _ELEMENTWISE:
            raise ExportError(f"the call {graph.ops.name[op]!r} outside of modules cannot run on some of the tokens")

    def find_values(self, stage: Sequence[int]) -> dict[str, int]:
        """The dimension of tokens of what goes from one stage to another, by the name of its call."""
        graph, values = self.graph, dict[str, int]()
        for tensor in np.flatnonzero(self.by_token).tolist():
            maker = int(graph.tensors.producer[tensor])
            if any(stage[reader] != stage[maker] for reader in self.readers[tensor]):
                values[graph.ops.name[maker].partition(".")[0].partition("#")[0]] = int(self.sharding.split[tensor])
        return values

    def _modules_around(self, scope: str) -> Iterator[str]:
        """The modules around a scope from the outside, as far as stages call them or what is inside of them.

        Lists of modules, whose members have numbers, are left out: nobody calls them.
        """
        parts = scope.split(".") if scope else []
        for count in range(1, len(parts) + 1):
            path, is_list = ".".join(parts[:count]), any(part.isdigit() for part in parts[count : count + 1])
            if self._is_called(path) and not is_list:
                yield path

    def _is_inside(self, op: int) -> bool:
        return any(self._is_in(op, path) for path in self.whole)

    def _is_called(self, path: str) -> bool:
        return any(path == one or path.startswith(f"{one}.") for one in self.whole)

    def _is_whole_in(self, tensor: int, path: str) -> bool:
        """Whether a tensor enters a module that needs all tokens of it, maybe after it was viewed in another shape."""
        if self._is_made_in(tensor, path) or not self.by_token[tensor]:
            return False
        inside = [op for op in self.readers[tensor] if self._is_in(op, path)]
        return bool(inside) and all(self._needs_all(op, path) for op in inside)

    def _enters(self, tensor: int, path: str) -> bool:
        return not self._is_made_in(tensor, path) and any(self._is_in(op, path) for op in self.readers[tensor])

    def _needs_all(self, op: int, path: str) -> bool:
        if self.sharding.style_of(op) != "tokens":
            return True
        views = self.graph.ops.kind[op] in _VIEWS
        after = [reader for tensor in self.graph.outputs_of(op) for reader in self.readers[tensor]] if views else []
        return bool(after) and all(self._is_in(reader, path) and self._needs_all(reader, path) for reader in after)

    def _needing(self, tensor: int, path: str) -> Iterator[int]:
        """The ops in a module that need all tokens of a tensor, itself or viewed in another shape."""
        for op in self.readers[tensor]:
            if not self._is_in(op, path):
                continue
            if self.sharding.style_of(op) != "tokens":
                yield op
            else:
                for made in self.graph.outputs_of(op):
                    yield from self._needing(made, path)

    def _module_of(self, tensor: int, reader: int) -> str:
        """The outermost module that makes a tensor and does not contain its reader; "" if there is none."""
        maker = int(self.graph.tensors.producer[tensor])
        if maker < 0:
            return ""
        around = self._modules_around(self.graph.ops.scope[maker])
        return next((path for path in around if not self._is_in(reader, path)), "")

    def _is_made_in(self, tensor: int, path: str) -> bool:
        maker = int(self.graph.tensors.producer[tensor])
        return maker >= 0 and not self.graph.ops.backward[maker] and self._is_in(maker, path)

    def _is_in(self, op: int, path: str) -> bool:
        scope = self.graph.ops.scope[op]
        return scope == path or scope.startswith(f"{path}.")
