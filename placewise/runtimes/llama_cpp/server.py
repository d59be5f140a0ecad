"""The object in the worker: a model that llama.cpp has loaded."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from placewise.errors import RunError
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.runtimes.llama_cpp.log import find_first_error
from placewise.runtimes.llama_cpp.program import completion_request

_VERBOSE = 5
_FLASH = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}


class LlamaServer:
    """A model with the flags that it was loaded with. What llama.cpp logs goes to a file of this process."""

    def __init__(self, path: str, flags: LlamaFlags) -> None:
        import xllamacpp

        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._stderr = os.dup(2)
        os.dup2(self._log.fileno(), 2)
        try:
            self._server: Any = xllamacpp.Server(_parameters(xllamacpp, path, flags))
        except (RuntimeError, ValueError) as error:
            raise RunError(f"llama.cpp does not load {path}: {find_first_error(self.read_log(), str(error))}") from None
        finally:
            os.dup2(self._stderr, 2)
            os.dup2(self._log.fileno(), 2)

    def read_log(self) -> str:
        """What was logged so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")

    def generate(self, prompt: list[int], tokens: int) -> tuple[float, float]:
        """Seconds for a prompt [tokens] and for `tokens` more, without what an earlier prompt left in the cache."""
        answer = self._server.handle_completions(completion_request(prompt, tokens))
        timings = answer.get("timings") if isinstance(answer, dict) else None
        if timings is None or timings["prompt_n"] != len(prompt):
            raise RunError(f"llama.cpp did not answer: {str(answer)[:200]}")
        return timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000

    def end(self) -> str:
        """Free the model, and the log to its end."""
        del self._server
        return self.read_log()


def _parameters(library: Any, path: str, flags: LlamaFlags) -> Any:
    """The flags as llama.cpp's own structure."""
    params = library.CommonParams()
    params.model.path, params.warmup, params.fit_params = path, False, False
    params.n_parallel, params.kv_unified = flags.parallel, False
    params.load_mode, params.verbosity = library.llama_load_mode.LLAMA_LOAD_MODE_NONE, _VERBOSE
    params.n_gpu_layers, params.n_ctx, params.n_batch = flags.ngl, flags.context, flags.batch
    params.n_ubatch, params.swa_full, params.no_extra_bufts = flags.ubatch, flags.swa_full, not flags.repack
    params.cache_type_k, params.cache_type_v = (
        getattr(library.ggml_type, f"GGML_TYPE_{name.upper()}") for name in flags.cache
    )
    params.flash_attn_type = getattr(library.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{_FLASH[flags.flash]}")
    if flags.split:
        split = list(params.tensor_split)
        params.tensor_split = [*flags.split, *split[len(flags.split) :]]
    if flags.all_overrides:
        params.tensor_buft_overrides = ",".join(f"{pattern}={place}" for pattern, place in flags.all_overrides)
    if flags.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = flags.threads
    return params
