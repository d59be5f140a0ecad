"""A corpus: the reproducible problem number k of a corpus file."""

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
from placewise.errors import InputError, PlacewiseError, locate_errors
from placewise.files.corpus_file import CorpusFile, FactorSpan, ModelRecord, RandomClusters, WholeSpan, load_corpus
from placewise.model.cluster import HOST, Cluster
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.repair import repair
from placewise.simulate.bounds.infeasible import why_infeasible
from placewise.simulate.judge.memory import device_memory
from placewise.zoo import registry as zoo

MAX_DRAWS = 200
"""Draws until a problem is not left out, not too large, and has a placement."""
ZOO = "zoo:"


@dataclass(frozen=True, slots=True)
class CorpusProblem:
    """A problem of a corpus, and its title."""

    problem: Problem
    title: str


@dataclass(frozen=True)
class Corpus:
    """The problems of a corpus file. It can be pickled.

    Names of cluster files are relative to `folder`. Raises InputError for names in the file that do not exist.
    """

    recipe: CorpusFile
    folder: str = ""
    _titles: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for row, model in enumerate(self.recipe.models):
            with locate_errors(f"models.{row}"):
                known = zoo.describe(_model_name(model)).dims
                unknown = next((name for name in model.dims if name not in known), None)
                if unknown is not None:
                    raise InputError(f"{_model_name(model)} has no dimension {unknown!r}",
                                     remedy=f"it has {', '.join(known)}")  # fmt: skip
                for line in model.devices:
                    self._cluster(line)
        with locate_errors("clusters.devices"):
            for device in self.recipe.clusters.devices:
                read_cluster(device)
        names = (*zoo.names(), *map(_model_name, self.recipe.models), *self.recipe.clusters.devices)
        for word in self.recipe.leave_out:
            if not any(name.startswith(word) for name in names):
                raise InputError(f"leaves out {word!r}, which begins no name", where="leave_out",
                                 remedy="give beginnings of names of models, or of devices")  # fmt: skip
        if not self._kept_models():
            raise InputError("leaves out every model", where="leave_out", remedy="leave out less")
        if all(map(self._is_left_out, self.recipe.clusters.devices)):
            raise InputError("leaves out every device", where="leave_out", remedy="leave out less")

    def problem(self, number: int) -> Problem:
        """Problem `number`, from 0; those after the last training problem are for validation."""
        return self.draw(number).problem

    def title(self, number: int) -> str:
        """The title of problem `number`."""
        return self._titles.get(number) or self.draw(number).title

    def draw(self, number: int) -> CorpusProblem:
        """Problem `number` and its title. Raises InputError if `MAX_DRAWS` draws give none."""
        why = "every draw is left out"
        for attempt in range(MAX_DRAWS):
            # Models that are left out change no other draw: corpora that differ in them alone share all other problems.
            rng = np.random.default_rng([self.recipe.seed, number, attempt])
            model = self._choose_model(rng, number)
            if self._is_left_out(_model_name(model)):
                continue
            try:
                drawn = self._build(rng, model)
            except PlacewiseError as error:
                why = str(error)
                continue
            if drawn is not None:
                self._titles[number] = drawn.title
                return drawn
            why = f"devices are left out, graphs have more than {self.recipe.most_ops} ops, or nothing fits"
        raise InputError(f"no problem came of {MAX_DRAWS} draws ({why})", where=f"problem {number}",
                         remedy="give smaller dimensions, more memory, or leave out less")  # fmt: skip

    def _choose_model(self, rng: np.random.Generator, number: int) -> ModelRecord:
        models = self.recipe.models
        if self.recipe.in_turn:
            return self._kept_models()[number % len(self._kept_models())]
        weight = np.array([model.weight for model in models])
        return models[int(rng.choice(len(models), p=weight / weight.sum()))]

    def _build(self, rng: np.random.Generator, model: ModelRecord) -> CorpusProblem | None:
        dims = {name: _draw_size(rng, size) for name, size in sorted(model.dims.items())}
        kind = model.graph[int(rng.integers(len(model.graph)))]
        execution = self.recipe.executions[int(rng.integers(len(self.recipe.executions)))]
        if model.devices:
            line = model.devices[int(rng.integers(len(model.devices)))]
            cluster, described = self._cluster(line), line
        else:
            cluster, described, names = _draw_cluster(rng, self.recipe.clusters)
            if any(map(self._is_left_out, names)):
                return None
        optimizer = "sgd" if kind == "training" else None
        options = ProblemOptions(objective="latency", execution=execution, graph=kind, optimizer=optimizer, dims=dims)
        problem = build(ZOO + _model_name(model), cluster, options)
        if problem.n_ops > self.recipe.most_ops:
            return None
        sizes = ", ".join(f"{name} {size}" for name, size in dims.items())
        title = f"{_model_name(model)} ({sizes}), {kind}, on {described}"
        if not model.devices and rng.random() < self.recipe.clusters.tight:
            problem, title = _limit_memory(rng, problem, self.recipe.clusters.room), f"{title}, hardly fits"
        # Another draw would have the same cluster where the file names it: only random ones are rejected.
        fits = not why_infeasible(problem) and (model.devices or _fits(problem))
        return CorpusProblem(problem, title) if fits else None

    def _cluster(self, line: str) -> Cluster:
        path = Path(self.folder) / line
        return read_cluster(path if line.endswith(".toml") else line)

    def _is_left_out(self, name: str) -> bool:
        return any(name.startswith(word) for word in self.recipe.leave_out)

    def _kept_models(self) -> Sequence[ModelRecord]:
        return [model for model in self.recipe.models if not self._is_left_out(_model_name(model))]


def open_corpus(path: str | PathLike[str]) -> Corpus:
    """Open the corpus of a file. Raises InputError, or a subclass of it, that names the file and the key."""
    recipe = load_corpus(path)
    with locate_errors(path):
        return Corpus(recipe, fspath(Path(path).parent))


def _model_name(model: ModelRecord) -> str:
    return model.model.removeprefix(ZOO)


def _draw_size(rng: np.random.Generator, size: int | tuple[int, ...] | WholeSpan) -> int:
    if isinstance(size, WholeSpan):
        value = math.exp(rng.uniform(math.log(size.least + 1), math.log(size.most + 2))) - 1
        return min(int(value), size.most)
    return size if isinstance(size, int) else int(size[int(rng.integers(len(size)))])


def _draw_factor(rng: np.random.Generator, span: FactorSpan) -> float:
    return float(math.exp(rng.uniform(math.log(span.least), math.log(span.most))))


def _draw_cluster(rng: np.random.Generator, clusters: RandomClusters) -> tuple[Cluster, str, list[str]]:
    """A random cluster, its description and the kinds of its devices."""
    known = clusters.devices
    count = _draw_size(rng, clusters.count)
    kinds = min(_draw_size(rng, clusters.kinds), count, len(known))
    names = [known[place] for place in rng.permutation(len(known))[:kinds].tolist()]
    cuts = np.sort(rng.permutation(count - 1)[: kinds - 1]) + 1
    parts = np.diff([0, *cuts.tolist(), count]).tolist()
    line = ",".join(f"{many}x{name}" for many, name in zip(parts, names, strict=True))
    line += ",cpu" if rng.random() < clusters.host else ""
    speed, staged = _draw_factor(rng, clusters.speed), rng.random() < clusters.staged
    cluster = _read_cached_cluster(line)
    links = tuple(replace(link, bandwidth=link.bandwidth * speed) for link in cluster.links)
    if staged:
        links = tuple(link for link in links if HOST in (link.source, link.target))
    described = f"{line} (links ×{speed:.2g}{', staged' if staged else ''})"
    return Cluster(cluster.devices, links, "staged" if staged else cluster.transfers), described, names


@cache
def _read_cached_cluster(line: str) -> Cluster:
    return read_cluster(line)


def _limit_memory(rng: np.random.Generator, problem: Problem, room: FactorSpan) -> Problem:
    """The problem with as much memory on all accelerators together as one alone needs, times a random factor."""
    cluster = problem.cluster
    first = int(np.flatnonzero(~cluster.is_host)[0])
    need = float(device_memory(problem, Placement.on(first, problem.n_ops))[1][first])
    each = need * _draw_factor(rng, room) / int((~cluster.is_host).sum())
    devices = tuple(
        device if host else replace(device, memory=min(device.memory, each + device.reserved))
        for device, host in zip(cluster, cluster.is_host.tolist(), strict=True)
    )
    return problem.with_(cluster=Cluster(devices, cluster.links, cluster.transfers))


def _fits(problem: Problem) -> bool:
    return repair(problem, np.zeros(problem.n_ops, np.int32), measured=False) is not None
