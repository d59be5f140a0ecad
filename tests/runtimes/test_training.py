"""Training runs beside one process: schedules, replicas, optimizers, checkpoints, restarts, and what cannot train."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from soak import SOAKS, later, seeds

import placewise as pw
from placewise.errors import InputError, ModelFileError, OutputError, RunError
from placewise.files.training_checkpoint import TrainingCheckpoint
from placewise.model.placement import Placement

torch = pytest.importorskip("torch")
from trained_models import TiedBlocks, build_forward, cut_evenly, save_program, train  # noqa: E402

from placewise.analysis.train_plan import (  # noqa: E402
    TrainedPlan,
    TrainingRunSetting,
    tabulate_training,
    train_placement,
)
from placewise.readers.torch.pipeline_trainer import Rows, require_schedule  # noqa: E402
from placewise.readers.torch.training_stages import TrainedProgram  # noqa: E402
from placewise.reporting.plain import plain  # noqa: E402
from placewise.reporting.training_run import training_run_view  # noqa: E402
from placewise.runtimes.base import Job  # noqa: E402
from placewise.runtimes.binding import bind  # noqa: E402
from placewise.runtimes.torch import training as runs  # noqa: E402
from placewise.simulate.step.orders import BACKWARD, FORWARD, WEIGHT, Task, device_orders  # noqa: E402

IDS = (torch.arange(12).reshape(2, 6),)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_program(TiedBlocks, IDS, tmp_path_factory.mktemp("blocks") / "model.pt2")


PATTERN = (0, 1, 1, 0)
"""Four stages on two devices, as under a zero-bubble schedule with a V."""
SCHEDULE = {"schedule": "zero-bubble", "optimizer": "momentum", "learning_rate": 0.01, "every": 3}


@pytest.fixture(scope="module")
def begun(blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedPlan, Path]:
    """Four steps, each compared with one process, and the folder of their checkpoint."""
    problem, folder = build_forward(blocks, "2xcore"), tmp_path_factory.mktemp("begun") / "kept"
    trained = train(problem, cut_evenly(problem, PATTERN), steps=4, compared=4, checkpoint=folder, **SCHEDULE)
    return trained, folder


@pytest.fixture(scope="module")
def resumed(blocks: Path, begun: tuple[TrainedPlan, Path]) -> runs.TrainingRecord:
    """Five more steps, by another command."""
    problem = build_forward(blocks, "2xcore")
    placement = cut_evenly(problem, PATTERN)
    return train(problem, placement, steps=9, compared=0, checkpoint=begun[1], resume=True, **SCHEDULE).record


@pytest.mark.parametrize(
    ("schedule", "pattern", "optimizer"),
    [
        later("gpipe", (0, 1), "sgd"),
        later("1f1b", (0, 1), "adam"),
        later("interleaved", (0, 1, 0, 1), "sgd"),
        later("zero-bubble", (0, 1), "adam"),
        ("zero-bubble", PATTERN, "momentum"),
    ],
)
def test_losses_and_gradients_are_those_of_one_process(
    blocks: Path, schedule: str, pattern: Sequence[int], optimizer: str, request: pytest.FixtureRequest
) -> None:
    """Under every schedule; the tied weight is on both devices, and whole numbers pass through. Processes do what the
    objective `step` simulates, in its order.
    """
    if pattern == PATTERN:
        trained = request.getfixturevalue("begun")[0]
    else:
        problem = build_forward(blocks, "2xcore")
        options = {"schedule": schedule, "optimizer": optimizer, "learning_rate": 0.01}
        trained = train(problem, cut_evenly(problem, pattern), steps=4, compared=4, **options)
    record = trained.record
    assert record.loss_difference <= 1e-5 and record.gradient_difference <= 1e-5 and len(record.compared) == 4
    assert record.losses[-1] < record.losses[0] and len(set(record.losses)) == 4
    done = {action for actions in record.order for action in actions}
    assert {(stage, "F", m) for stage in range(len(pattern)) for m in range(4)} <= done
    assert np.isfinite(trained.prediction.seconds) and len(record.memory) == 2
    assert all(0 < runtime < peak for runtime, peak in zip(record.runtime, record.memory, strict=True))
    simulated = {"zero-bubble": "zb-v" if len(pattern) > 2 else "zb-h1"}.get(schedule, schedule)
    kinds = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}
    order = tuple(tuple(Task(kinds[kind], stage, i) for stage, kind, i in actions) for actions in record.order)
    assert order == device_orders(simulated, 2, 4)


def test_replicas_average_their_gradients(blocks: Path) -> None:
    """Two copies of one stage take every second micro-batch each, and train as one process does."""
    problem = build_forward(blocks, "2xcore")
    placement = Placement(np.zeros(problem.n_ops, np.int32), replicas=np.array([0, 0], np.int32))
    trained = train(problem, placement, steps=2, schedule="gpipe", optimizer="sgd", learning_rate=0.01)
    assert trained.training.replicas == ((0,), (1,))
    assert trained.record.loss_difference <= 1e-5 and trained.record.gradient_difference <= 1e-5


def test_losses_and_weights_are_those_of_the_module(tmp_path: Path) -> None:
    """Of the live module that PyTorch trains without Placewise, tied weights, buffers and Adam included."""
    path = save_program(TiedBlocks, IDS, tmp_path / "model.pt2")
    problem = build_forward(path, "2xcore")
    rows = np.random.default_rng(1).integers(0, 20, (8, 6))
    folder = tmp_path / "kept"
    options = {"steps": 3, "checkpoint": folder, "compared": 0, "learning_rate": 0.01, "optimizer": "adam"}
    trained = train(problem, cut_evenly(problem, (0, 1)), TrainingRunSetting(inputs={"ids": rows}), **options)
    torch.manual_seed(0)
    module = TiedBlocks().train()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        parts = [module(torch.from_numpy(rows[k : k + 2]))[0].square().mean() / 4 for k in range(0, 8, 2)]
        sum(parts).backward()
        optimizer.step()
        losses.append(float(sum(parts).detach()))
    assert trained.record.losses == pytest.approx(losses, rel=1e-5)
    weights = torch.load(folder / "weights.pt", weights_only=True)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.soak
def test_inputs_and_targets_take_turns(tmp_path: Path) -> None:
    """Rows of a file are the micro-batches in turn, and whole numbers are targets of a cross-entropy."""
    path = save_program(TiedBlocks, IDS, tmp_path / "model.pt2")
    problem = build_forward(path, "2xcore")
    rng = np.random.default_rng(0)
    rows = {"ids": rng.integers(0, 20, (8, 6)), "target": rng.integers(0, 20, (8, 6))}
    trained = train(problem, cut_evenly(problem, (0, 1)), TrainingRunSetting(inputs=rows), steps=3, compared=3)
    assert trained.record.loss_difference <= 1e-5
    assert trained.record.losses[0] == pytest.approx(np.log(20), rel=0.2)


class PartlyTrained(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A frozen encoder, a buffer that is not saved, a layer that nothing uses, and a head that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.unused = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4), torch.nn.Linear(3, 3)
        self.encoder.requires_grad_(False)
        self.register_buffer("scale", torch.full((8,), 2.0), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.encoder(x)) * self.scale)


@pytest.mark.soak
def test_the_weights_are_the_whole_state_of_the_module(tmp_path: Path) -> None:
    """Also what did not train, in the folder of a run whose first stage has nothing to train."""
    path = save_program(PartlyTrained, (torch.randn(4, 8),), tmp_path / "model.pt2")
    problem, folder = build_forward(path, "2xcore"), tmp_path / "kept"
    trained = train(problem, cut_evenly(problem, (0, 1)), steps=2, compared=2, checkpoint=folder)
    assert trained.record.loss_difference <= 1e-5 and trained.record.gradient_difference <= 1e-5
    torch.manual_seed(0)
    module = PartlyTrained()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    changed = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"head.weight", "head.bias"}


class TiedDecoder(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An encoder and a decoder of one table, which is its head, too; they meet late."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.encoder = torch.nn.Embedding(9, 8), torch.nn.Linear(8, 8)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, source: Any, target: Any) -> Any:
        memory = torch.tanh(self.encoder(self.table(source)))
        decoded = torch.tanh(self.first(self.table(target)))
        decoded = decoded + torch.softmax(decoded @ memory.mT, -1) @ memory
        return torch.tanh(self.second(decoded)) @ self.table.weight.T


@pytest.mark.parametrize(
    ("make", "example", "pattern"),
    [
        (PartlyTrained, lambda: (torch.randn(4, 8),), (0, 1)),
        later(TiedDecoder, lambda: (torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64)), PATTERN),
    ],
)
def test_zero_bubble_finds_every_gradient(make: Any, example: Any, pattern: Any, tmp_path: Path) -> None:
    """Of stages behind frozen ones, and of a weight that is used several times; PyTorch's own stages do not."""
    problem = build_forward(save_program(make, example(), tmp_path / "model.pt2"), "2xcore")
    trained = train(problem, cut_evenly(problem, pattern), steps=1, compared=1, schedule="zero-bubble")
    assert trained.record.loss_difference <= 1e-5 and trained.record.gradient_difference <= 1e-5


class Deaths(runs.TrainingProcesses):
    """Kills a process of a run when a step begins or while it runs, once."""

    moment: tuple[int, int, float] | None = None

    def step(self, number: int) -> tuple[float, float]:
        if Deaths.moment is not None and Deaths.moment[0] == number:
            _, rank, delay = Deaths.moment
            Deaths.moment = None
            if delay:
                threading.Timer(delay, os.kill, (self.pids[rank], signal.SIGKILL)).start()
            else:
                os.kill(self.pids[rank], signal.SIGKILL)
        return super().step(number)


def _train_with_a_death(path: Path, folder: Path, moment: tuple[int, int, float]) -> tuple[Any, list[int]]:
    problem = build_forward(path, "2xcore")
    Deaths.moment = moment
    seen: list[int] = []

    def note(number: int, _: float, seconds: float) -> None:
        seen.append(number)
        time.sleep(0.02)

    options = runs.TrainingOptions(steps=9, checkpoint=folder, compared=0, **SCHEDULE)
    trained = train_placement(problem, cut_evenly(problem, PATTERN), options, TrainingRunSetting(), on_step=note)
    return trained.record, seen


def _require_no_step_lost(record: Any, seen: list[int], undisturbed: Sequence[float]) -> None:
    assert record.losses == tuple(undisturbed)
    again = next((k for k in range(1, len(seen)) if seen[k] <= seen[k - 1]), len(seen))
    assert seen[:again] == list(range(1, again + 1))
    if again == len(seen):
        assert again == 9
        return
    assert record.restarts and (seen[again] - 1) % 3 == 0 and seen[again - 1] - seen[again] < 3
    assert seen[again:] == list(range(seen[again], 10))


def test_a_dead_process_costs_no_step(
    blocks: Path, tmp_path: Path, resumed: runs.TrainingRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes restart from the last checkpoint, and losses are those of a run without the death."""
    monkeypatch.setattr(runs, "TrainingProcesses", Deaths)
    record, seen = _train_with_a_death(blocks, tmp_path / "kept", (5, 1, 0.0))
    _require_no_step_lost(record, seen, resumed.losses)
    assert len(record.restarts) == 1 and "process 1 (core:1) died" in record.restarts[0]
    weights = torch.load(tmp_path / "kept" / "weights.pt", weights_only=True)
    module = TiedBlocks()
    module.load_state_dict(weights)
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["checkpoint.json", "step-00000009", "weights.pt"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(20))
def test_deaths_at_random_moments_cost_no_step(
    blocks: Path, tmp_path: Path, resumed: runs.TrainingRecord, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The same, whenever a process dies: before a step, in it, or while a checkpoint is written."""
    monkeypatch.setattr(runs, "TrainingProcesses", Deaths)
    draw = random.Random(seed)
    moment = (draw.randint(1, 8), draw.randint(0, 1), draw.uniform(0.0, 0.06))
    record, seen = _train_with_a_death(blocks, tmp_path / "kept", moment)
    _require_no_step_lost(record, seen, resumed.losses)


def test_training_goes_on_from_a_checkpoint(
    blocks: Path, begun: tuple[TrainedPlan, Path], resumed: runs.TrainingRecord
) -> None:
    """A later command goes on, with losses that a run without a stop has (test_a_dead_process_costs_no_step); other
    options, and a folder in use, are refused.
    """
    problem = build_forward(blocks, "2xcore")
    placement = cut_evenly(problem, PATTERN)
    trained, kept = begun
    common = {"checkpoint": kept, "compared": 0, **SCHEDULE}
    assert resumed.losses[:4] == trained.record.losses
    assert len(resumed.losses) == 9 and resumed.first == 5 and len(resumed.seconds) == 5
    with pytest.raises(InputError, match="holds a checkpoint already"):
        train(problem, placement, steps=9, **common)
    with pytest.raises(ModelFileError, match="checkpoint of another training run"):
        train(problem, placement, steps=9, resume=True, **(common | {"learning_rate": 0.02}))
    if SOAKS:
        done = train(problem, placement, steps=9, resume=True, **common)
        assert "nothing was trained: the checkpoint has 9 steps" in done.record.notes[0]
        shutil.copytree(kept, kept.with_name("damaged"))
        (kept.with_name("damaged") / "step-00000009" / "rank-1.pt").write_bytes(b"no checkpoint")
        with pytest.raises(RunError, match=r"rank-1.pt is damaged; begin anew in another folder, without --resume"):
            train(problem, placement, steps=10, resume=True, **(common | {"checkpoint": kept.with_name("damaged")}))


def test_steps_in_which_threads_waited_are_not_counted(begun: tuple[TrainedPlan, Path]) -> None:
    """The median is that of the steps as calm as the calmest, without the first; a note says how many were left out."""
    trained, _ = begun
    assert len(trained.record.waited) == 4 and min(trained.record.waited) >= 0
    record = replace(trained.record, seconds=(9.0, 1.0, 3.0, 2.0, 1.5), waited=(5.0, 0.1, 0.9, 0.2, 0.8))
    table = tabulate_training(replace(trained, record=record))
    assert table.seconds == 1.5 and "2 steps in which other programs had the processor are not counted" in table.notes
    shorter = replace(record, seconds=(9.0, 1.0, 3.0), waited=(5.0, 0.1, 0.9))
    single = tabulate_training(replace(trained, record=shorter))
    assert "1 step in which other programs had the processor is not counted" in single.notes
    assert math.isnan(single.spread)
    (plan_line,) = [line for line in plain(training_run_view(single)).splitlines() if line.startswith("plan ")]
    assert plan_line.split()[:4] == ["plan", "1", "s", "–"]
    first, *others = trained.training.job.places
    slow = replace(trained.training.job, places=(replace(first, quota=0.5), *others))
    limited = replace(trained, record=record, training=replace(trained.training, job=slow))
    assert limited.calm_steps == record.seconds[1:]
    resumed = replace(trained, record=replace(record, seconds=(), waited=()))
    assert resumed.seconds == math.inf and tabulate_training(resumed).notes == (trained.prediction.note,)


def test_a_prediction_without_a_profile_says_so(begun: tuple[TrainedPlan, Path]) -> None:
    """In one sentence, with the command that measures a training step."""
    notes = tabulate_training(begun[0]).notes
    command = "placewise profile MODEL -d DEVICES --graph training --runtime pipelining --loaded -o FILE"
    assert sum(command in note for note in notes) == 1


def test_processes_on_one_gpu_meet_in_host_memory(blocks: Path) -> None:
    """NCCL connects processes with a GPU each, and takes no two on one."""
    problem = build_forward(blocks, "2xcore")
    for second, own in (("cuda:1", True), ("cuda:0", False), ("cores:0", False)):
        places = bind(problem.cluster, {"core:0": "cuda:0", "core:1": second})
        job = Job(problem, cut_evenly(problem, (0, 1)), places)
        assert runs.plan_training(job, runs.TrainingOptions()).on_gpus == own


def test_gpus_that_compute_in_tf32_may_differ_as_much(
    blocks: Path, begun: tuple[TrainedPlan, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses of processes on cores may not."""
    problem = build_forward(blocks, "2xcore")
    record = replace(begun[0].record, loss_difference=5e-3)
    monkeypatch.setattr("placewise.analysis.train_plan.train_plan", lambda *_: record)
    options, placement = runs.TrainingOptions(compared=0, **SCHEDULE), cut_evenly(problem, PATTERN)
    on_gpus = TrainingRunSetting({"core:0": "cuda:0", "core:1": "cuda:1"})
    assert train_placement(problem, placement, options, on_gpus).record is record
    with pytest.raises(RunError, match=r"losses differ by 0\.005 .* which is more than 1e-05"):
        train_placement(problem, placement, options, TrainingRunSetting())


def test_a_death_without_checkpoints_is_named(blocks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the run and all processes, and the error says which one died."""
    monkeypatch.setattr(runs, "TrainingProcesses", Deaths)
    problem = build_forward(blocks, "1xcore")
    Deaths.moment = (2, 0, 0.0)
    with pytest.raises(RunError, match=r"process 0 \(core.*\) died.*with --checkpoint"):
        train(problem, Placement.on(0, problem.n_ops), steps=3, compared=0)


class OwnLoss(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two products and a loss, which is the only output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)).square().mean()


class Attending(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two layers of an encoder whose dropout drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


@pytest.mark.soak
def test_losses_are_compared_where_dropout_drops_nothing(tmp_path: Path) -> None:
    """They are those of one process, and no note says that they could not be compared."""
    path = save_program(Attending, (torch.randn(2, 4, 8),), tmp_path / "model.pt2")
    problem = build_forward(path, "2xcore")
    record = train(problem, cut_evenly(problem, (0, 1)), steps=2).record
    assert len(record.compared) == 2 and record.loss_difference <= 1e-5 and not record.notes


class Rectified(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Residual layers, each with an activation whose gradient needs its result."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


@pytest.mark.soak
def test_zero_bubble_cuts_behind_an_activation(tmp_path: Path) -> None:
    """What a stage passes on is needed again for the gradients of its weights, which come later."""
    path = save_program(Rectified, (torch.randn(4, 8),), tmp_path / "model.pt2")
    problem = build_forward(path, "2xcore")
    record = train(problem, cut_evenly(problem, (0, 1, 1, 0)), steps=2, schedule="zero-bubble").record
    assert len(record.order) == 2 and len(record.compared) == 2 and record.loss_difference <= 1e-5


class Frozen(OwnLoss):
    """A model none of whose parameters trains."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Choosing(OwnLoss):
    """A model whose output is a choice."""

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)).argmax(-1)


class Detached(OwnLoss):
    """A model that lets no gradient reach its parameters."""

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)).detach() + x


class Bare(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model without parameters."""

    def forward(self, x: Any) -> Any:
        return (x @ x.T).relu().sum(-1)


class Spectral(OwnLoss):
    """A model with a call that PyTorch cannot trace without data."""

    def forward(self, x: Any) -> Any:
        spectrum = torch.stft(self.first(x), 4, 2, window=torch.ones(4), return_complex=True)
        return torch.istft(spectrum, 4, 2, window=torch.ones(4), length=8)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Frozen, "none of the 4 parameters of the program trains: all of them are frozen"),
        later(Choosing, "all outputs of the program are whole numbers, which have no gradient"),
        later(Detached, "no output of the program depends on a parameter through calls that have gradients"),
        later(Bare, "the program has no parameters, so there is nothing to train"),
        later(Spectral, r"the program cannot be traced without data \(aten::equal: [^.]*\)"),
    ],
)
def test_what_cannot_train_is_one_sentence(tmp_path: Path, module: Any, message: str) -> None:
    """Before any process has connected to another one."""
    path = save_program(module, (torch.randn(4, 8),), tmp_path / "model.pt2")
    problem = build_forward(path, "1xcore")
    with pytest.raises(RunError, match=f"^this plan cannot train: {message}$"):
        train(problem, Placement.on(0, problem.n_ops), steps=1)


def test_micro_batches_that_do_not_fit_are_refused(blocks: Path) -> None:
    """Rows of inputs that they do not divide, replicas, and stages of 1f1b."""
    problem = build_forward(blocks, "2xcore")
    trained = TrainedProgram(torch.export.load(blocks), shapes={"ids": [2, 6]}, frozen=())
    with pytest.raises(ValueError, match="'ids' has 10 rows, which 4 micro-batches of 2 rows do not divide"):
        Rows(trained, 0, 4, {"ids": torch.zeros((10, 6), dtype=torch.int64)})
    with pytest.raises(ValueError, match="1f1b needs as many micro-batches as stages, 2, and there are 1"):
        require_schedule("1f1b", (0, 1), 1)  # in every process, as for the rows
    copies = Placement(np.zeros(problem.n_ops, np.int32), replicas=np.array([0, 0], np.int32))
    with pytest.raises(InputError, match="3 micro-batches do not divide among 2 replicas"):
        train(problem, copies, steps=1, microbatches=3)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (np.zeros((8, 6)), r"the target of a micro-batch has shape \(2, 6\), and the output gives it \(2, 6, 20\)"),
        (np.zeros((8, 1), np.int64), r"has shape \(2, 1\), and the output gives it \(2, 6\)"),
        (np.zeros((0, 6), np.int64), "the target has 0 rows, and the inputs make 4 micro-batches"),
        (np.array(1.0), "the target has 0 rows, and the inputs make 4 micro-batches"),
        (np.zeros((9, 6), np.int64), "the target has 9 rows, and the inputs make 4 micro-batches"),
    ],
)
def test_targets_that_do_not_fit_are_refused(blocks: Path, target: Any, message: str) -> None:
    """Instead of being repeated over the output, which trains something else; one that fits is taken."""
    trained = TrainedProgram(torch.export.load(blocks), shapes={}, frozen=())
    ids = torch.zeros((8, 6), dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        Rows(trained, 0, 4, {"ids": ids, "target": torch.from_numpy(target)})
    assert Rows(trained, 0, 4, {"ids": ids, "target": ids}).microbatch(1, 3).target.shape == (2, 6)
    assert Rows(trained, 0, 4, {"target": torch.zeros(2, 6, 20)}).microbatch(1, 0).target.shape == (2, 6, 20)


def test_the_loss_is_where_the_outputs_are(blocks: Path) -> None:
    """Pipelines of PyTorch compute it with the last stage: a step plan has no stage of the loss alone."""
    options = pw.ProblemOptions(graph="training", objective="step", microbatches=4)
    problem = pw.build(blocks, "2xcore", options)
    graph = problem.graph
    loss = list(graph.ops.kind).index("Loss")
    last = graph.tensors.producer[graph.inputs_of(loss)].max()
    assert problem.block[loss] == problem.block[last]
    free = pw.build(blocks, "2xcore", pw.ProblemOptions(graph="training", objective="throughput"))
    assert free.block[loss] != free.block[last]


def test_a_run_that_nothing_comes_of_leaves_no_folder(tmp_path: Path) -> None:
    """It made one; a folder that was there stays, and so does one with a checkpoint."""
    kept = TrainingCheckpoint(tmp_path / "kept", "run", 2, resume=False)
    kept.abandon()
    assert not kept.path.exists()
    kept.path.mkdir()
    TrainingCheckpoint(kept.path, "run", 2, resume=False).abandon()
    assert kept.path.is_dir()
    again = TrainingCheckpoint(tmp_path / "again", "run", 2, resume=False)
    for name in again.files(1):
        Path(name).touch()
    again.commit(1, [0.5])
    again.abandon()
    Path(again.files(1)[1]).unlink()
    with pytest.raises(ModelFileError, match=r"lacks rank-1.pt; begin anew in another folder, without --resume"):
        TrainingCheckpoint(tmp_path / "again", "run", 2, resume=True)


def test_a_checkpoint_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """Also where the folder was there when training began; one that was removed meanwhile is made again."""
    kept = TrainingCheckpoint(tmp_path / "kept", "run", 2, resume=False)
    shutil.rmtree(tmp_path / "kept")
    assert [Path(name).name for name in kept.files(3)] == ["rank-0.pt", "rank-1.pt"]
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(OutputError, match=r"cannot be written \(.+\)"):
        kept.files(6)


@pytest.mark.soak
def test_inputs_and_devices_that_do_not_fit_are_refused(blocks: Path) -> None:
    """An input that the program does not have, and devices in turns under gpipe."""
    problem = build_forward(blocks, "2xcore")
    unknown = TrainingRunSetting(inputs={"words": np.zeros((2, 6), np.int64)})
    with pytest.raises((RunError, InputError), match="has no input 'words'"):
        train(problem, cut_evenly(problem, (0, 1)), unknown, steps=1)
    with pytest.raises(RunError, match=r"gpipe runs one stage per device.*4 \(core:0, core:1, core:0, core:1\)"):
        train(problem, cut_evenly(problem, (0, 1, 0, 1)), steps=1, schedule="gpipe")


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"learning_rate": 0.0}, {"schedule": "2f2b"}, {"optimizer": "lion"}, {"resume": True},
     {"restarts": -1}, {"microbatches": 0}],
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    """Each with one sentence."""
    with pytest.raises(InputError):
        runs.TrainingOptions(**wrong)
