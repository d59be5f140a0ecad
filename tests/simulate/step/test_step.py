"""The judge of a training step against its definition: seconds, bytes, rules."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from soak import seeds
from step_problems import random_step_pipeline, step_problem
from twins.step import PlainStep

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import StageGroup
from placewise.simulate import judge_placement
from placewise.simulate.step.judge import price_pipeline
from placewise.simulate.step.memory import copy_peaks
from placewise.simulate.step.orders import FLAT, device_orders
from placewise.simulate.step.pipelines import placement_of_pipeline
from placewise.simulate.step.roles import op_roles
from placewise.simulate.step.simulate import StepRun, simulate_step
from placewise.simulate.step.stage_costs import Pipeline


def plain_step(problem: Problem, pipeline: Pipeline) -> PlainStep:
    m = problem.constraints.microbatches
    orders = device_orders(pipeline.schedule, len(pipeline.devices), m)
    return PlainStep(
        problem, orders, pipeline.stage.tolist(), pipeline.stage_devices().tolist(), op_roles(problem).tolist(), m
    )


def test_seconds_and_bytes_are_those_of_the_definition() -> None:
    """Random stages, links, hosts, skips and tied weights under every schedule: value and peaks are the twin's."""
    seen = Counter[str]()
    for seed in seeds(120):
        problem = step_problem(seed)
        pipeline = random_step_pipeline(seed, problem)
        if pipeline is None:
            continue
        _, run = price_pipeline(problem, pipeline)
        plain = plain_step(problem, pipeline)
        assert run.value == pytest.approx(plain.value, rel=1e-12), seed
        resident, peak = copy_peaks(run, 0)
        assert dict(zip(pipeline.devices, (peak - resident).tolist(), strict=True)) == pytest.approx(plain.peaks()), seed
        seen[pipeline.schedule] += 1
        seen["tied"] += bool(run.copies[0].costs.gradients.hops)
    assert all(seen[what] > 2 for what in ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "tied"))
