"""How ranks on GPUs and on cores exchange values."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewise.readers.torch.backends import choose_backend

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        (["cuda:0", "cuda:1"], "nccl"),
        (["cuda:0"], "nccl"),
        (["cuda:0", "cpu"], "gloo"),
        (["cpu", "cuda:0", "cuda:1"], "gloo"),
        (["cuda:0", "cuda:0"], "gloo"),  # NCCL takes no two ranks on one GPU
        (["cpu", "cpu"], "gloo"),
    ],
)
def test_one_back_end_for_all_ranks(devices: list[str], backend: str) -> None:
    """The back end follows from all devices, not from that of one rank."""
    assert choose_backend(devices) == backend


def test_stages_that_train_exchange_by_gloo_in_host_memory(tmp_path: Path) -> None:
    """On whatever device they compute."""
    from trained_models import OwnLoss, save_program

    from placewise.readers.torch.pipeline_trainer import PipelineTrainer

    program = torch.export.load(save_program(OwnLoss, (torch.randn(2, 8),), tmp_path / "model.pt2"))
    plan = {
        "stage_ranks": [0], "replicas": 1, "calls": [], "schedule": "gpipe", "microbatches": 2, "optimizer": "sgd",
        "learning_rate": 0.1, "seed": 0, "frozen": [], "shapes": {},
    }  # fmt: skip
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        trainer = PipelineTrainer(program, plan, device="meta")
    finally:
        torch.distributed.destroy_process_group()
    assert trainer.device.type == "meta"
    assert [value.device.type for value in trainer.modules[0].example(trainer.modules[0].takes, whole=True)] == ["cpu"]


def test_gloo_sees_host_memory_only() -> None:
    """What a stage on another device takes and returns is in host memory; its module computes on its device."""
    from placewise.readers.torch.cutting import HostStage, MicrobatchStage

    seen = []

    class Elsewhere(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, *values):  # type: ignore[no-untyped-def]
            seen.extend(value.device.type for value in values)
            return tuple(torch.zeros(value.shape) for value in values)

    stage = MicrobatchStage(HostStage(Elsewhere(), "meta"), first=True, last=True)
    outputs = stage(torch.ones(1, 3), torch.ones(1, 2, 2))
    assert seen == ["meta", "meta"]
    assert [(value.device.type, tuple(value.shape)) for value in outputs] == [("cpu", (1, 3)), ("cpu", (1, 2, 2))]
