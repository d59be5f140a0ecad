"""Replicas of stages under PyTorch's own wrappers: are their gradients those of one process?

    python benchmarks/real/replica_wrappers.py

Two processes hold a copy each of one or two small stages and share the micro-batches of a step under a schedule of
torch.distributed.pipelining. Gradients are averaged by `DistributedDataParallel`, `fully_shard`, or as `placewise run
--train` does it, and compared with those of one process: the largest difference, as a share of the largest entry. With
`tied`, both stages hold one weight; with `unused`, one has a parameter that gets no gradient. Writes
results/real_replica_wrappers.json and .md; exits with 1 where the gradients of Placewise are not within 1e-5.
"""

from __future__ import annotations

import copy
import os
import socket
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

from placewise.readers.torch.gradient_exchange import reduce_in_buckets

WRAPPERS = ("DistributedDataParallel", "fully_shard", "placewise")
SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B, "zb-v": ScheduleZBVZeroBubble,
}  # fmt: skip
CASES = (("gpipe", ""), ("1f1b", ""), ("interleaved", ""), ("zb-v", ""), ("1f1b", "unused"), ("zb-v", "tied"))
MICROBATCHES, WIDTH, REPLICAS, STEPS = 4, 8, 2, 2


def make_stages(schedule: str, case: str) -> list[nn.Module]:
    """One stage, or two of a process that has several."""
    torch.manual_seed(0)
    count = 1 if schedule in ("gpipe", "1f1b") else 2
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(count)]
    if case == "tied":
        stages[1][2].weight = stages[0][0].weight
    if case == "unused":
        stages[0].register_parameter("unused", nn.Parameter(torch.zeros(WIDTH)))
    return list(stages)


def wrap(module: nn.Module, wrapper: str) -> nn.Module:
    if wrapper == "fully_shard":
        return fully_shard(module, mesh=init_device_mesh("cpu", (REPLICAS,)))
    return DistributedDataParallel(module) if wrapper == "DistributedDataParallel" else module


def compare(wrapper: str, schedule: str, case: str, rank: int, alone: Any) -> float:
    """The largest difference of gradients over some steps; `alone` is the group of this process."""
    stages = make_stages(schedule, case)
    whole = copy.deepcopy(stages)
    names = [dict(stage.named_parameters()) for stage in whole]
    own = [wrap(stage, wrapper) for stage in stages]
    row = torch.empty(1, WIDTH, requires_grad=True)
    parts = [
        PipelineStage(stage, number, len(own), torch.device("cpu"), input_args=(row,), output_args=(row,), group=alone)
        for number, stage in enumerate(own)
    ]
    loss = lambda made, _: made.square().mean() / MICROBATCHES  # noqa: E731
    made = SCHEDULES[schedule](parts if len(parts) > 1 else parts[0], MICROBATCHES, loss_fn=loss, scale_grads=False)
    rows, worst = torch.randn(REPLICAS * MICROBATCHES, WIDTH), 0.0
    for _ in range(STEPS):
        for stage in (*own, *whole):
            stage.zero_grad()
        made.step(rows[rank::REPLICAS], target=torch.zeros(MICROBATCHES), return_outputs=False)
        if wrapper == "placewise":
            held = {id(p): p for stage in own for p in stage.parameters() if p.grad is not None}
            reduce_in_buckets([p.grad for p in held.values()], dist.group.WORLD, REPLICAS)
        nn.Sequential(*whole)(rows).square().mean().backward()
        for stage, wanted in zip(own, names, strict=True):
            for name, parameter in stage.named_parameters():
                right = wanted.get(name.removeprefix("module."))
                if right is not None and right.grad is not None:
                    found = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
                    found = found.full_tensor() if hasattr(found, "full_tensor") else found
                    worst = max(worst, float((found - right.grad).abs().max() / right.grad.abs().max()))
    return worst


def run(rank: int, port: int, wrapper: str, schedule: str, case: str, answers: Any) -> None:
    """A process of one comparison: the difference, or why there is none."""
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=REPLICAS, timeout=timedelta(seconds=60))
        groups = [dist.new_group([replica]) for replica in range(REPLICAS)]
        answers.put(compare(wrapper, schedule, case, rank, groups[rank]))
        dist.barrier()
    except Exception as error:
        answers.put(str(error.__cause__ or error).strip().splitlines()[0].partition(". ")[0])


def measure(wrapper: str, schedule: str, case: str) -> float | str:
    """What the processes found: the largest difference, or the first error."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=run, args=(r, port, wrapper, schedule, case, answers)) for r in range(REPLICAS)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join(5)
        process.kill()
    failures = [one for one in found if isinstance(one, str)]
    return failures[0] if failures else max(found)


def main() -> int:
    from common import report  # the processes above need nothing of it

    rows = [
        {"schedule": schedule, "case": case} | {wrapper: measure(wrapper, schedule, case) for wrapper in WRAPPERS}
        for schedule, case in CASES
    ]
    wrong = [str(row) for row in rows if isinstance(row["placewise"], str) or not row["placewise"] <= 1e-5]
    lines = [
        "# Replicas of stages under PyTorch's own wrappers", "",
        f"`python benchmarks/real/replica_wrappers.py`, PyTorch {torch.__version__}: the largest difference of "
        "gradients from those of one process, as a share of the largest entry.", "",
        f"| schedule | case | {' | '.join(WRAPPERS)} |", f"|---|---|{'---|' * len(WRAPPERS)}",
    ]  # fmt: skip
    for row in rows:
        cells = [row[name] if isinstance(row[name], str) else f"{row[name]:.1e}" for name in WRAPPERS]
        lines.append(f"| {row['schedule']} | {row['case']} | {' | '.join(cells)} |")
    return report("replica_wrappers", rows, wrong, "\n".join(lines), ("torch", "placewise"))


if __name__ == "__main__":
    sys.exit(main())
