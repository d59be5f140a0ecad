"""Models of configurations, traced once: their graphs are cached by everything that a trace depends on."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import placewise.model
import placewise.readers
from placewise._util.llama_defaults import UBATCH
from placewise.errors import InputError
from placewise.files.cache_folder import GRAPHS, LIMITS, mark_used, open_cache, remove_oldest
from placewise.files.graph_file import load_traced, save_traced
from placewise.readers.base import ImportedModel
from placewise.readers.huggingface import read_huggingface
from placewise.readers.huggingface.settings import Settings, read_settings
from placewise.readers.run_dims import RunDims, parse_dims

_NEEDED, _OPTIONAL = ("torch", "transformers"), ("timm", "torchvision")
"""Libraries that make the model, and those that some models of transformers take parts from."""


def read_traced(
    source: str | Path, *, dims: Mapping[str, int], dtype: str | None, training: bool, use_cache: bool = True
) -> ImportedModel:
    """As `read_huggingface`, without tracing a model again that the cache holds.

    A file of the cache that is damaged is ignored and replaced. No trace depends on the micro-batch.
    """
    traced = _read_cached(source, _without_ubatch(dims), dtype, training, use_cache)
    named = traced.graph.source
    if named is None or UBATCH not in dims:
        return traced
    sizes = named.options.get("dims", {})
    run = parse_dims({UBATCH: dims[UBATCH]}, {name: name for name in sizes}, RunDims())
    named = replace(named, options={**named.options, "dims": {**sizes, UBATCH: run.ubatch}})
    return replace(traced, graph=traced.graph.with_source(named))


def _without_ubatch(dims: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in dims.items() if name != UBATCH}


def _read_cached(
    source: str | Path, dims: Mapping[str, int], dtype: str | None, training: bool, use_cache: bool
) -> ImportedModel:
    versions = _library_versions() if use_cache else None
    folder = None if versions is None else open_cache(GRAPHS)
    if folder is None:
        return read_huggingface(source, dims=dims, dtype=dtype, training=training)
    settings = read_settings(source)
    state = (settings.sha256, versions, _reader_digest())
    key = _key(state, dims, dtype, training)
    traced = _load(_path(folder, key), key, settings)
    if traced is None:
        traced = read_huggingface(source, dims=dims, dtype=dtype, training=training)
        with suppress(OSError, InputError):
            for name in {key, _key_of_plans(state, traced, training)}:
                save_traced(_path(folder, name), name, (traced.graph, traced.warnings, dict(traced.modules)))
            remove_oldest(folder, LIMITS[GRAPHS])
    return traced


def _key(state: tuple[object, ...], dims: Mapping[str, int], dtype: str | None, training: bool) -> str:
    return hashlib.sha256(repr((*state, sorted(dims.items()), dtype, training)).encode()).hexdigest()


def _key_of_plans(state: tuple[object, ...], traced: ImportedModel, training: bool) -> str:
    """The key under which a plan asks for its model again: it names every dimension and the element type."""
    options = {} if traced.graph.source is None else traced.graph.source.options
    return _key(state, _without_ubatch(options.get("dims", {})), options.get("dtype"), training)


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key[:32]}.npz"


def _load(path: Path, key: str, settings: Settings) -> ImportedModel | None:
    try:
        graph, warnings, modules = load_traced(path, key)
    except InputError:
        return None
    if graph.source is None or graph.source.sha256 != settings.sha256:
        return None
    mark_used(path)
    return ImportedModel(graph.with_source(replace(graph.source, path=settings.path)), None, warnings, None, modules)


def _library_versions() -> tuple[str, ...] | None:
    """The versions of Python and of the libraries; None where one is missing, or its files may change under one."""
    versions = [sys.version]
    for name in (*_NEEDED, *_OPTIONAL):
        try:
            package = distribution(name)
        except PackageNotFoundError:
            if name in _NEEDED:
                return None
            continue
        if '"editable"' in (package.read_text("direct_url.json") or ""):
            return None
        versions.append(f"{name} {package.version}")
    return tuple(versions)


@cache
def _reader_digest() -> str:
    """A digest of the code between a configuration and its graph: nobody can forget to raise it."""
    state = hashlib.sha256()
    readers, model = (Path(str(package.__file__)).parent for package in (placewise.readers, placewise.model))
    for pattern in ("*.py", "huggingface/**/*.py", "torch/**/*.py"):
        for path in sorted(readers.glob(pattern)):
            state.update(path.read_bytes())
    for path in sorted(model.rglob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()
