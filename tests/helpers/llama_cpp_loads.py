"""Loads a GGUF file with the real llama.cpp, in a process of its own, and reads from its log what it allocated."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_CHILD = """
import json, sys
import xllamacpp as llama
asked = json.loads(sys.argv[1])
params = llama.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = asked["path"], asked["context"], 1
params.n_gpu_layers, params.warmup, params.fit_params, params.no_extra_bufts = 0, False, False, True
params.load_mode, params.verbosity = llama.llama_load_mode.LLAMA_LOAD_MODE_NONE, 5
keys, values = asked["cache"]
params.cache_type_k = getattr(llama.ggml_type, f"GGML_TYPE_{keys.upper()}")
params.cache_type_v = getattr(llama.ggml_type, f"GGML_TYPE_{values.upper()}")
server = llama.Server(params)
print(json.dumps(server.handle_completions({"prompt": "a", "n_predict": asked["tokens"], "ignore_eos": True})))
"""
_BUFFER = re.compile(r"(model|KV|compute) buffer size = +([\d.]+) MiB")
ROUNDED = 0.005 * 2**20
"""The log has two digits of mebibytes."""


@dataclass(frozen=True)
class Loaded:
    """Bytes of the buffers, by what they hold, each rounded to `ROUNDED`; how many buffers that are; what it said."""

    nbytes: dict[str, float]
    buffers: dict[str, int]
    said: str


def load(path: Path, *, context: int, cache: tuple[str, str] = ("f16", "f16"), tokens: int = 4) -> Loaded:
    """Load a model and let it generate. AssertionError with the end of its log where it does not."""
    asked = json.dumps({"path": str(path), "context": context, "cache": cache, "tokens": tokens})
    ended = subprocess.run([sys.executable, "-c", _CHILD, asked], capture_output=True, timeout=120, check=False)
    log = ended.stderr.decode("utf-8", "replace")
    assert ended.returncode == 0, "\n".join(log.splitlines()[-20:])
    nbytes, buffers = defaultdict[str, float](float), defaultdict[str, int](int)
    for what, size in _BUFFER.findall(log):
        nbytes[what] += float(size) * 2**20
        buffers[what] += 1
    return Loaded(dict(nbytes), dict(buffers), ended.stdout.decode("utf-8", "replace"))
