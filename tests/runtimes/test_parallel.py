"""Live models that are really split, replicated, cut into stages and recomputed, over gloo."""

from __future__ import annotations

import pytest
from parallel_plans import PARTS, draw, example, gradient_scale, largest_error, make_plan, reference

from placewise.runtimes.torch.parallel import ParallelRun, WholeRun

pytest.importorskip("torch", reason="torch is not installed")

TOLERANCE = 1e-4


def compare(name: str, plan: dict) -> None:
    """Outputs and gradients of a plan against one process."""
    inputs = draw(example(name)[1])
    with WholeRun(reference(name)) as whole, ParallelRun(reference(name), plan) as run:
        for one, other in zip(run.outputs(inputs), whole.outputs(inputs), strict=True):
            assert one.shape == other.shape and largest_error(one, other) < TOLERANCE
        wanted = whole.gradients(inputs)
        seen = set()
        for gradients in run.gradients(inputs):
            for key, value in gradients.items():
                assert largest_error(value, wanted[key], gradient_scale(wanted)) < TOLERANCE, key
            seen |= gradients.keys()
        assert seen == wanted.keys()


@pytest.mark.parametrize("name", ["llama", "bert", "resnet"])
@pytest.mark.parametrize("sizes", [(1, 1, 2), (2, 1, 1), (1, 2, 1)], ids=["split", "stages", "replicas"])
def test_two_processes_compute_what_one_does(name: str, sizes: tuple[int, int, int]) -> None:
    """Outputs and the gradients of one step, to 1e-4."""
    compare(name, make_plan(name, *sizes))


@pytest.mark.parametrize("name", ["llama", "bert", "resnet"])
def test_four_processes_compute_what_one_does(name: str) -> None:
    """Two stages of two devices each, whose layers recompute."""
    layers = [part for part in PARTS[name] if part.startswith("layer")]
    compare(name, make_plan(name, 2, 1, 2, recompute=layers))
