"""Every option of a problem, described once: the command line, Python and messages all read this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "whole", "texts", "rules", "sizes", "amounts", "settings", "switch", "negation", "either"]
"""What a flag takes: a text; a whole number; texts; REGEX=DEVICE pairs; NAME=NUMBER pairs; DEVICE=SIZE pairs or JSON;
NAME=VALUE pairs; nothing (`switch` is True and `negation` False where the flag is given); or one of two flags."""

MODEL, RULES = "Model and objective", "Rules"


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option: its name in Python, its flag, what it takes, and what it does in one sentence.

    `panel` is the heading of `--help` that it stands under, `aliases` are other flags for it.
    """

    name: str
    flag: str
    kind: Kind
    help: str
    panel: str = MODEL
    aliases: tuple[str, ...] = ()

    @property
    def repeats(self) -> bool:
        """Whether the flag may be given several times."""
        return self.kind in ("texts", "rules", "sizes", "amounts")


PROBLEM_OPTIONS = (
    OptionInfo("objective", "--objective", "text", "latency, throughput, or step: one pipelined training step.", ""),
    OptionInfo("dims", "--dim", "sizes", "A symbolic dimension, as batch=8 or context=32k; may be repeated.", ""),
    OptionInfo(
        "execution",
        "--execution",
        "text",
        "Latency: how a sample is run: operator, contention-free, subgraph or sequential.",
    ),
    OptionInfo("communication", "--communication", "text", "Throughput: blocking, overlap or duplex."),
    OptionInfo("memory", "--memory", "text", "How memory is counted: live, resident or sum."),
    OptionInfo(
        "contiguous", "--contiguous/--free", "either", "Stages form a chain; --free: devices may hold any sets of ops."
    ),
    OptionInfo(
        "convex", "--convex", "switch", "Stages need not form a chain, but no path may leave a device and return."
    ),
    OptionInfo(
        "replicas", "--replicas", "text", "Throughput: how many equal devices may share a stage, or 'any' (default: 1)."
    ),
    OptionInfo(
        "tensor_parallel",
        "--tensor-parallel",
        "text",
        "The most devices that an op may be split over, or 'any'; stages may then be replicated and recomputed, too.",
    ),
    OptionInfo(
        "sequence_parallel",
        "--sequence-parallel/--no-sequence-parallel",
        "either",
        "With --tensor-parallel: also split by tokens what lies between split products, as Megatron-LM does.",
    ),
    OptionInfo("recompute", "--recompute", "text", "Training: recompute activations: auto, never or always."),
    OptionInfo(
        "microbatches", "--microbatches", "whole", "Training: micro-batches per step, each of a batch (default: 32)."
    ),
    OptionInfo(
        "step_samples", "--step-samples", "whole", "Samples per synchronization of replicas; 0: one per replica."
    ),
    OptionInfo(
        "schedule",
        "--schedule",
        "text",
        "Throughput of training: 1f1b, or gpipe, which flushes between forward and backward. Step: also interleaved, "
        "zb-h1 or zb-v; auto, the default, takes the best.",
    ),
    OptionInfo("view", "--view", "text", "folded or raw: fold constants, or keep every op of the file."),
    OptionInfo(
        "costs",
        "--costs",
        "texts",
        "Measured op times: CSV or JSON, a profile of Placewise, ONNX Runtime, OpenVINO or PyTorch, or a cost table "
        "(.npz). DEVICE=FILE assigns them to a device; may be repeated.",
    ),
    OptionInfo(
        "graph",
        "--graph",
        "text",
        "inference or training; training adds a backward pass and an optimizer (default: inference).",
        "",
    ),
    OptionInfo("optimizer", "--optimizer", "text", "Optimizer of a training graph: sgd, momentum or adam."),
    OptionInfo("freeze", "--freeze", "texts", "REGEX: do not train weights whose names match; may be repeated."),
    OptionInfo(
        "precision",
        "--precision",
        "text",
        "Cast the model to fp64, fp32, tf32, fp16 or bf16, or its weights to fp8, int8 or int4 (default: no cast).",
        aliases=("--dtype",),
    ),
    OptionInfo(
        "cache_type", "--cache-type", "text", "GGUF: type of the KV cache, or of keys and values, as q8_0,q4_0 (f16)."
    ),
    OptionInfo(
        "tf32", "--tf32/--no-tf32", "either", "Compute float32 products in TF32 (default: as the model's runtime does)."
    ),
    OptionInfo("pins", "--pin", "rules", "REGEX=DEVICE: place ops whose name or scope matches on that device.", RULES),
    OptionInfo(
        "forbid", "--forbid", "rules", "REGEX=DEVICE: keep ops whose name or scope matches off that device.", RULES
    ),
    OptionInfo(
        "together",
        "--together",
        "texts",
        "REGEX: ops whose scope or name has the same matching text share a device. Or a class of modules to keep "
        "whole, as BertLayer; may be repeated.",
        RULES,
        ("--no-split",),
    ),
    OptionInfo(
        "headroom",
        "--headroom",
        "texts",
        "Memory to keep free on every accelerator, as 10% or 2GiB, or on one, as cuda:0=2GiB; may be repeated.",
        RULES,
    ),
    OptionInfo(
        "max_memory",
        "--max-memory",
        "amounts",
        "DEVICE=SIZE: limit the memory of a device (0 excludes it); may be repeated. Or all limits as JSON.",
        RULES,
    ),
    OptionInfo("exclude", "--exclude", "texts", "DEVICE or REGEX: devices to leave out; may be repeated.", RULES),
    OptionInfo("offload", "--no-offload", "negation", "Use no CPU and no disk.", RULES),
    OptionInfo(
        "supported", "--supported", "rules", "REGEX=DEVICE: the only kinds of op that this device can run.", RULES
    ),
    OptionInfo(
        "unsupported", "--unsupported", "rules", "REGEX=DEVICE: kinds of op that this device cannot run.", RULES
    ),
    OptionInfo("in_order", "--in-order", "switch", "Stages follow the order of the devices in -d."),
    OptionInfo("cache", "--cache/--no-cache", "either", "Cache traced graphs and measured times, and use cached ones."),
)
"""The options of a problem, in the order of `--help`: the fields of `ProblemOptions`."""

_SINGLE: tuple[tuple[Kind, str], ...] = (
    ("text", "model placer start time_limit gap runtime inputs measure_time until resolution"),
    ("text", "policy reward checkpoint tensorboard"),
    ("whole", "seed threads in_flight rounds updates evaluations max_points workers"),
    ("switch", "measure trust_model resume"),
    ("settings", "bind vary"),
    ("texts", "why_not"),
)
OTHER_OPTIONS = (
    OptionInfo("devices", "-d", "text", "", aliases=("--devices",)),
    OptionInfo("target", "--for", "text", ""),
    OptionInfo("options", "--option", "settings", ""),
    OptionInfo("weights", "--weights", "text", "", aliases=("--from",)),
    OptionInfo("prices", "--price", "settings", ""),
    *(OptionInfo(name, f"--{name.replace('_', '-')}", kind, "") for kind, names in _SINGLE for name in names.split()),
)
"""Options of single commands that messages name; each command describes its own."""
