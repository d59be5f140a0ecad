"""Read Hugging Face configurations: transformers builds the model without weights, torch traces it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from placewise.errors import MissingExtraError, ModelFileError
from placewise.readers.base import ImportedModel
from placewise.readers.huggingface.presets import preset_names

__all__ = ["preset_names", "read_huggingface"]

OLDEST = 5
"""The first version of transformers in which attention and experts can be replaced."""
_NO_DIMS: Mapping[str, int] = MappingProxyType({})


def read_huggingface(
    source: str | Path, *, dims: Mapping[str, int] = _NO_DIMS, dtype: str | None = None, training: bool = False
) -> ImportedModel:
    """Read the model that a configuration describes: ``hf:preset``, a `config.json`, or a folder that contains one.

    The raw view has one op per ATen call; no weight is allocated or downloaded. A model that generates has two
    phases, prefill and decode (per token). Ops of equal scope in both phases share colocation groups, and the KV
    cache is state. `dims`: ``batch`` (1), ``prompt`` (512), ``tokens`` (generated: 128; 0 for prefill only),
    ``length`` (of the cache; default prompt + tokens), ``sequences`` (batches in flight: 1), ``experts_split`` (1:
    each expert is an op). Models that run once have ``batch`` and, if they read text, ``length``. ``context`` is
    another name of ``length``. `dtype` (bfloat16, float16, float32, float64) defaults to that of the
    configuration, else float32.

    With `training` the graph is the forward pass of a training step: a text of ``length`` tokens, one prediction per
    token, no cache.

    Raises ModelFileError, naming the file, or MissingExtraError without torch and transformers.
    """
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError:
        raise MissingExtraError("reading Hugging Face configurations", "transformers") from None
    if int(transformers.__version__.partition(".")[0]) < OLDEST:
        raise ModelFileError(
            f"transformers {transformers.__version__} is too old for this",
            where=str(source),
            remedy=f"pip install 'transformers>={OLDEST}'",
        )
    from placewise.readers.huggingface.reader import read

    return read(source, dims, dtype, training=training)
