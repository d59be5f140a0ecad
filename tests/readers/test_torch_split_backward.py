"""The backward pass in two, of stages whose weights meet their inputs at several places, beside PyTorch's in one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from soak import seeds  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight  # noqa: E402

from placewise.readers.torch.split_backward import SplitBackwardStage, merge_groups  # noqa: E402


class Tied(nn.Module):
    """A decoder whose embedding is its head, too, with a layer between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Parameter(torch.randn(9, 4)), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.middle(x @ self.table)) @ self.table.T


class Biased(nn.Module):
    """Two layers that share their weight, which is named after their biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Any) -> Any:
        hidden = torch.tanh(nn.functional.linear(x, self.weight, self.first))
        return nn.functional.linear(hidden, self.weight, self.second)


class Apart(nn.Module):
    """Hands on two values, of which one depends on a weight alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Any) -> Any:
        return self.layer(x), self.table @ self.table.T


class HandedOn(nn.Module):
    """Uses a weight here, and hands it on, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Any) -> Any:
        return torch.tanh(x @ self.table), self.table * 2


class Drawn(nn.Module):
    """A random program: products with weights, of which some are used again, and sums and products of its values."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        draw = lambda most: int(torch.randint(0, most, (1,), generator=generator))  # noqa: E731
        self.weights = nn.ParameterList(torch.randn(4, 4, generator=generator) / 2 for _ in range(1 + draw(4)))
        self.steps = [(draw(4), draw(1 << 20), draw(1 << 20), draw(len(self.weights))) for _ in range(3 + draw(10))]

    def forward(self, x: Any) -> Any:
        values = [x @ self.weights[0], torch.tanh(self.weights[-1]), self.weights[0] * 2]
        for kind, one, other, weight in self.steps:
            a, b = values[one % len(values)], values[other % len(values)]
            w = self.weights[weight]
            b = b if b.shape == a.shape else b.mean()
            values.append((a @ w, a + b, a * torch.sigmoid(b), a @ torch.relu(w @ w.T))[kind])
        return tuple(values[-3:])


def run_module(module: nn.Module, x: Any) -> tuple[list[Any], list[Any]]:
    """Copies of the outputs of a module, since PyTorch detaches them in place, and gradients that arrive at them."""
    made = module(x)
    outputs = [value.clone() for value in (made if isinstance(made, tuple) else (made,))]
    return outputs, [torch.linspace(0.5, 1.5, v.numel(), dtype=v.dtype).reshape(v.shape) for v in outputs]


def in_two(module: nn.Module, x: Any) -> tuple[Any, list[Any]]:
    """The gradients of the input and of the weights, one after the other, as a stage computes them."""
    outputs, arrived = run_module(module, x)
    stage = SplitBackwardStage.__new__(SplitBackwardStage)
    stage.submod = module
    state = {"stage_output": outputs, "output_grads": arrived, "input_values": [x]}
    (gradient,), groups = stage.backward_maybe_with_nosync("input", state)
    stage.backward_maybe_with_nosync("weight", {"stage_output": outputs, "param_groups": groups})
    return gradient, [weight.grad for weight in module.parameters()]


def in_two_by_torch(module: nn.Module, x: Any, **options: Any) -> list[Any]:
    """The gradients of the weights as PyTorch computes them."""
    weights = list(module.parameters())
    _, groups = stage_backward_input(*run_module(module, x), [x], iter(weights))
    stage_backward_weight(iter(weights), groups, **options)
    return [weight.grad for weight in weights]


def by_one_pass(module: nn.Module, x: Any) -> tuple[Any, ...]:
    """The gradients of the input, if it has some, and of the weights."""
    outputs, arrived = run_module(module, x)
    found = torch.autograd.grad(
        outputs, [*([x] if x.requires_grad else []), *module.parameters()], arrived, allow_unused=True
    )
    return found if x.requires_grad else (None, *found)


def compare(module: nn.Module, x: Any) -> None:
    """Both ways agree on the input and on every weight."""
    module, x = module.double(), x.detach().double().requires_grad_(x.requires_grad)
    gradient, found = in_two(module, x)
    for one, other in zip((gradient, *found), by_one_pass(module, x), strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, rtol=1e-6, atol=1e-9 * float(other.abs().max()))


def test_a_tied_weight_around_a_layer() -> None:
    """PyTorch alone fails there, since the graph of the layer is gone when its turn comes."""
    torch.manual_seed(0)
    compare(Tied(), torch.randn(3, 9, requires_grad=True))
    failures = 0
    for _ in range(20):  # groups are in the order of addresses
        try:
            in_two_by_torch(Tied(), torch.randn(3, 9, requires_grad=True))
        except RuntimeError as error:
            assert "a second time" in str(error)
            failures += 1
    assert failures


def test_groups_that_overlap() -> None:
    """PyTorch alone counts gradients twice there."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    compare(Biased(), x)
    module = Biased()
    found = in_two_by_torch(module, x, retain_graph=True)
    assert not all(torch.allclose(a, b) for a, b in zip(found, by_one_pass(module, x)[1:], strict=True))


@pytest.mark.parametrize("behind", [True, False])
def test_weights_that_meet_no_input(behind: bool) -> None:
    """Some, or all where the stages before are frozen; PyTorch alone gives them none."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=behind)
    compare(Apart(), x)
    compare(HandedOn(), x)
    assert None in in_two_by_torch(Apart(), x)


def test_random_programs() -> None:
    """Weights that are used several times, in the paths of other weights, and apart from the input."""
    torch.manual_seed(0)
    for seed in seeds(400):
        compare(Drawn(seed), torch.randn(3, 4, requires_grad=seed % 4 > 0))


def test_groups_that_share_a_weight_or_a_node_become_one() -> None:
    """Transitively; what nothing arrived at is left out, and a group of such nodes alone goes."""
    groups = [
        {"params": {"a"}, "intermediates": [1], "grads": ["one"]},
        {"params": {"b"}, "intermediates": [2, 3], "grads": ["two", None]},
        {"params": {"c"}, "intermediates": [4]},
        {"params": {"a", "d"}, "intermediates": [5, 2], "grads": ["five", "two"]},
        {"params": {"e"}, "intermediates": [6], "grads": ["six"]},
    ]
    merged = sorted(merge_groups(groups), key=lambda group: len(group["params"]))
    assert [group["params"] for group in merged] == [{"e"}, {"a", "b", "d"}]
    assert dict(zip(merged[1]["intermediates"], merged[1]["grads"], strict=True)) == {1: "one", 2: "two", 5: "five"}
