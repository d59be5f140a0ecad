"""A corpus: problem number k of a corpus file, the same one whenever and wherever it is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from placewise.catalog import read_cluster
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import InputError, PlacewiseError
from placewise.files.corpus_file import CorpusFile, FactorSpan, ModelRecord, RandomClusters, WholeSpan, load_corpus
from placewise.files.records import locate_errors
from placewise.model.cluster import HOST, Cluster
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.repair import repair
from placewise.simulate.bounds.infeasible import why_infeasible
from placewise.simulate.judge.memory import device_memory
from placewise.zoo import registry as zoo

TRIES = 200
"""Draws until one is no model that is left out, too large, or without any placement."""
ZOO = "zoo:"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn: a problem, and what it is in words."""

    problem: Problem
    title: str


@dataclass(frozen=True)
class Corpus:
    """The problems of a corpus file: plain data, which other processes are sent.

    Raises InputError for what the file names and nobody knows. `folder` is where names of cluster files begin.
    """

    recipe: CorpusFile
    folder: str = ""
    _titles: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for row, model in enumerate(self.recipe.models):
            with locate_errors(f"models.{row}"):
                known = zoo.describe(_name(model)).dims
                stranger = next((name for name in model.dims if name not in known), None)
                if stranger is not None:
                    raise InputError(f"{_name(model)} has no dimension {stranger!r}",
                                     remedy=f"it has {', '.join(known)}")  # fmt: skip
                for line in model.devices:
                    self._cluster(line)
        with locate_errors("clusters.devices"):
            for device in self.recipe.clusters.devices:
                read_cluster(device)
        names = (*zoo.names(), *map(_name, self.recipe.models), *self.recipe.clusters.devices)
        for word in self.recipe.leave_out:
            if not any(name.startswith(word) for name in names):
                raise InputError(f"leaves out {word!r}, which begins no name", where="leave_out",
                                 remedy="give beginnings of names of models, or of devices")  # fmt: skip
        if not self._models():
            raise InputError("leaves out every model", where="leave_out", remedy="leave out less")
        if all(map(self._is_out, self.recipe.clusters.devices)):
            raise InputError("leaves out every device", where="leave_out", remedy="leave out less")

    def problem(self, number: int) -> Problem:
        """Problem `number`, from 0; those after the last one to train on are for validation."""
        return self.drawn(number).problem

    def title(self, number: int) -> str:
        """Problem `number` in words."""
        return self._titles.get(number) or self.drawn(number).title

    def drawn(self, number: int) -> Drawn:
        """Problem `number` and its title. Raises InputError where the file hardly ever gives one."""
        why = "every draw is left out"
        for attempt in range(TRIES):
            # What is left out changes no other draw, so that corpora that differ in this alone share their problems.
            rng = np.random.default_rng([self.recipe.seed, number, attempt])
            model = self._model(rng, number)
            if self._is_out(_name(model)):
                continue
            try:
                found = self._draw(rng, model)
            except PlacewiseError as error:
                why = str(error)
                continue
            if found is not None:
                self._titles[number] = found.title
                return found
            why = f"devices are left out, graphs have more than {self.recipe.most_ops} ops, or nothing fits"
        raise InputError(f"no problem came of {TRIES} draws ({why})", where=f"problem {number}",
                         remedy="give smaller dimensions, more memory, or leave out less")  # fmt: skip

    def _model(self, rng: np.random.Generator, number: int) -> ModelRecord:
        models = self.recipe.models
        if self.recipe.in_turn:
            return self._models()[number % len(self._models())]
        weight = np.array([model.weight for model in models])
        return models[int(rng.choice(len(models), p=weight / weight.sum()))]

    def _draw(self, rng: np.random.Generator, model: ModelRecord) -> Drawn | None:
        dims = {name: _size(rng, size) for name, size in sorted(model.dims.items())}
        kind = model.graph[int(rng.integers(len(model.graph)))]
        execution = self.recipe.executions[int(rng.integers(len(self.recipe.executions)))]
        if model.devices:
            line = model.devices[int(rng.integers(len(model.devices)))]
            cluster, said = self._cluster(line), line
        else:
            cluster, said, chosen = _random_cluster(rng, self.recipe.clusters)
            if any(map(self._is_out, chosen)):
                return None
        optimizer = "sgd" if kind == "training" else None
        options = ProblemOptions(objective="latency", execution=execution, graph=kind, optimizer=optimizer, dims=dims)
        problem = build(ZOO + _name(model), cluster, options)
        if problem.n_ops > self.recipe.most_ops:
            return None
        title = f"{_name(model)} ({', '.join(f'{name} {size}' for name, size in dims.items())}), {kind}, on {said}"
        if not model.devices and rng.random() < self.recipe.clusters.tight:
            problem, title = _tight(rng, problem, self.recipe.clusters.room), f"{title}, hardly fits"
        # A cluster that the file names is no matter of luck: another draw would have it too.
        return Drawn(problem, title) if not why_infeasible(problem) and (model.devices or _fits(problem)) else None

    def _cluster(self, line: str) -> Cluster:
        path = Path(self.folder) / line
        return read_cluster(path if line.endswith(".toml") else line)

    def _is_out(self, name: str) -> bool:
        return any(name.startswith(word) for word in self.recipe.leave_out)

    def _models(self) -> Sequence[ModelRecord]:
        return [model for model in self.recipe.models if not self._is_out(_name(model))]


def open_corpus(path: str | PathLike[str]) -> Corpus:
    """The corpus of a file. Raises InputError and its kin naming the file and the key."""
    recipe = load_corpus(path)
    with locate_errors(path):
        return Corpus(recipe, fspath(Path(path).parent))


def _name(model: ModelRecord) -> str:
    return model.model.removeprefix(ZOO)


def _size(rng: np.random.Generator, size: int | tuple[int, ...] | WholeSpan) -> int:
    if isinstance(size, WholeSpan):
        found = math.exp(rng.uniform(math.log(size.least + 1), math.log(size.most + 2))) - 1
        return min(int(found), size.most)
    return size if isinstance(size, int) else int(size[int(rng.integers(len(size)))])


def _factor(rng: np.random.Generator, span: FactorSpan) -> float:
    return float(math.exp(rng.uniform(math.log(span.least), math.log(span.most))))


def _random_cluster(rng: np.random.Generator, clusters: RandomClusters) -> tuple[Cluster, str, list[str]]:
    """A cluster, its line and kinds; its links as fast as drawn, and all through the host where that is drawn."""
    known = clusters.devices
    count = _size(rng, clusters.count)
    kinds = min(_size(rng, clusters.kinds), count, len(known))
    chosen = [known[place] for place in rng.permutation(len(known))[:kinds].tolist()]
    cuts = np.sort(rng.permutation(count - 1)[: kinds - 1]) + 1
    parts = np.diff([0, *cuts.tolist(), count]).tolist()
    line = ",".join(f"{many}x{name}" for many, name in zip(parts, chosen, strict=True))
    line += ",cpu" if rng.random() < clusters.host else ""
    speed, staged = _factor(rng, clusters.speed), rng.random() < clusters.staged
    made = _wired(line)
    links = tuple(replace(link, bandwidth=link.bandwidth * speed) for link in made.links)
    if staged:
        links = tuple(link for link in links if HOST in (link.source, link.target))
    said = f"{line} (links ×{speed:.2g}{', staged' if staged else ''})"
    return Cluster(made.devices, links, "staged" if staged else made.transfers), said, chosen


@cache
def _wired(line: str) -> Cluster:
    return read_cluster(line)


def _tight(rng: np.random.Generator, problem: Problem, room: FactorSpan) -> Problem:
    """The problem with so much memory on all accelerators together as one would need, times a factor."""
    cluster = problem.cluster
    first = int(np.flatnonzero(~cluster.is_host)[0])
    need = float(device_memory(problem, Placement.on(first, problem.n_ops))[1][first])
    each = need * _factor(rng, room) / int((~cluster.is_host).sum())
    devices = tuple(
        device if host else replace(device, memory=min(device.memory, each + device.reserved))
        for device, host in zip(cluster, cluster.is_host.tolist(), strict=True)
    )
    return problem.with_(cluster=Cluster(devices, cluster.links, cluster.transfers))


def _fits(problem: Problem) -> bool:
    return repair(problem, np.zeros(problem.n_ops, np.int32), measured=False) is not None
