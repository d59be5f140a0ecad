"""The options of llama-server that a plan needs, and what its devices are called (common/arg.cpp)."""

from __future__ import annotations

TARGET, HOST = "llama.cpp", "CPU"
CONTEXT, PARALLEL, CACHE_KEYS, CACHE_VALUES = "-c", "-np", "-ctk", "-ctv"
BATCH_FLAG, MICRO_BATCH_FLAG = "-b", "-ub"
SERVERS, THREADS = "--rpc", "-t"
NGL, DEVICE, SPLIT = "-ngl", "--device", "--tensor-split"
FIRST, OVERRIDE = "-ncmoe", "--override-tensor"
"""Experts in host memory: those of the first layers, and those of any."""
NO_PIPELINE = "without-pipeline=CPU"
"""An override that means no tensor: where one is given, llama.cpp makes no pipeline of micro-batches."""
FIT, FIT_TARGET, MARGIN = "--fit", "--fit-target", 1024
"""Its own placement, the MiB of each device that it leaves free, and their default."""
