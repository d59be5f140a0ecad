"""Would several settings of gdp's leanings be better than one? Random ones, chosen on some problems, tried on others.

    python benchmarks/generalize/leanings.py [--settings 21] [--problems 28] [--spread 0.35]

Every setting's favourites, on all counts of devices, are priced on problems of corpora/without.toml. Settings are then
chosen one after the other for the mean logarithm of the best of those chosen. Printed: that mean over the untrained
setting's, and, on the problems for validation, over what `temper` finds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from placewise.model.columns import Floats
from placewise.model.problem import Problem
from placewise.placers.learned.gdp import GdpOptions, GdpPlacer
from placewise.placers.learned.pricing import Pricing
from placewise.placing import place
from placewise.studies.corpus import open_corpus

CORPUS = Path(__file__).parent / "corpora" / "without.toml"
MOST = 8
"""Settings that are chosen."""


def prices(problem: Problem, spread: float, count: int) -> Floats:
    """Log seconds [n] of the favourites of every setting: the untrained one, and random ones around it."""
    policy = GdpPlacer(GdpOptions(pretrained=False, most_units=256)).policy(problem, 0)
    leanings = [dict(policy.named_parameters())[name] for name in ("lean_pair.weight", "lean_belief.weight")]
    start, dice, found = [value.detach().clone() for value in leanings], torch.Generator().manual_seed(0), []
    with torch.no_grad():
        for number in range(count):
            for value, kept in zip(leanings, start, strict=True):
                noise = torch.randn((2, *kept.shape), generator=dice)
                value.copy_(kept if not number else kept * (1 + spread * noise[0]) + spread * noise[1])
            pricing = Pricing(problem)
            found.append(float(np.nanmin(pricing(policy.greedy(pricing)))))
    return np.log(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what each further setting brings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=int, default=21)
    parser.add_argument("--problems", type=int, default=28)
    parser.add_argument("--validated", type=int, default=24)
    parser.add_argument("--spread", type=float, default=0.35)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    corpus = open_corpus(CORPUS)
    last = corpus.recipe.problems
    known = np.array([prices(corpus.problem(n), given.spread, given.settings) for n in range(given.problems)])
    unseen = [corpus.problem(n) for n in range(last, last + given.validated)]
    tried = np.array([prices(problem, given.spread, given.settings) for problem in unseen])
    best = np.log([place(problem, "temper").value for problem in unseen])
    chosen: list[int] = []
    print("| settings | training, over the untrained | validation, over temper |\n|--:|--:|--:|")
    for _ in range(min(MOST, given.settings)):
        rest = [s for s in range(given.settings) if s not in chosen] if chosen else [0]
        chosen.append(min(rest, key=lambda s: float(known[:, [*chosen, s]].min(axis=1).mean())))
        gained = np.exp((known[:, chosen].min(axis=1) - known[:, 0]).mean())
        print(f"| {len(chosen)} | {gained:.3f} | {np.exp((tried[:, chosen].min(axis=1) - best).mean()):.3f} |")


if __name__ == "__main__":
    main()
