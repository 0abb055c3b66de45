"""Searches compared with simulating every layout of their spaces, without bounds and without any code of the search.

    python -m search.exhaustive --spaces 12 --seed 1 --least 200

Each space is drawn: a model, one or two frameworks, numbers of GPUs, a method, lengths, a batch; those in which nothing
fits are not counted. Printed is a line a space; exit code 1 if a search's best ten or its Pareto set differ from those
of all layouts.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from simcore.executors.processes import processes
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.found import FoundLayout
from simcore.results.report import Report
from simcore.search.judge import Candidate
from simcore.search.objective import OBJECTIVES
from simcore.search.search import Search, search
from simcore.search.space import Space, candidates, space_of
from simcore.simulate import simulate

MODELS = ("llama-3.2-1b", "llama-3-8b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "nemotron-3-nano-30b-a3b",
          "gpt-oss-20b", "llama-3.1-70b")
FRAMEWORKS = ("fsdp2", "automodel", "megatron", "zero3", "zero2", "ddp", "fsdp1", "megatron_fsdp")
Answer = list[tuple[float, ...]]


def drawn_space(generator: random.Random) -> tuple[Space, tuple[str, ...]]:
    """Space around a drawn scenario, and the names of two objectives."""
    sizes = generator.choice([(2,), (4,), (8,), (2, 4), (16,)])
    base = Scenario.model_validate({
        "name": "drawn", "model": generator.choice(MODELS), "framework": generator.choice(FRAMEWORKS),
        "topology": generator.choice(["dgx-h100", "dgx-h200", "dgx-a100", "dgx-b200"]),
        "training": {"method": generator.choice(["full", "lora"]), "seq_len": generator.choice([1024, 4096, 8192]),
                     "global_batch_size": generator.choice([16, 32, 64])}})
    frameworks = tuple(generator.sample(FRAMEWORKS, generator.choice([1, 2])))
    names = generator.choice([("tokens", "peak"), ("step", "peak"), ("cost", "peak"), ("peak", "tokens"),
                              ("gpus", "tokens", "peak")])
    return space_of(base, gpus=sizes, frameworks=frameworks), names


def all_simulated(space: Space, names: Sequence[str], top: int) -> tuple[Answer, set[tuple[float, ...]]]:
    """(best values in order, values of the Pareto set) of every layout that surely fits, by `simulate` alone."""
    rows: dict[object, Answer] = {}
    for candidate in candidates(space):
        if (row := _row(space.base, candidate, names)) is not None:
            rows.setdefault(row[0], row[1])
    values = sorted(rows.values())
    firsts = {tuple(value[0] for value in each) for each in values}
    front = {a for a in firsts if not any(b != a and all(x <= y for x, y in zip(b, a, strict=True)) for b in firsts)}
    return [each[0] for each in values[:top]], front


def _row(base: Scenario, candidate: Candidate, names: Sequence[str]) -> tuple[object, Any] | None:
    try:
        report = simulate(changed(base, candidate))
    except Exception:  # noqa: BLE001 - a candidate that cannot be a scenario is in no answer
        return None
    if report.verdict != "fits" or report.time is None:
        return None
    degrees = tuple(value for key, value in candidate.items() if key == "framework" or key.startswith("mesh."))
    numbers = (report.highest_bytes, report.headroom_bytes, report.time.step_s, report.time.mfu)
    return (degrees, numbers), tuple(_value(report, name) for name in names)


def _value(report: Report, name: str) -> tuple[float, ...]:
    time, peak = report.time, report.highest_bytes
    assert time is not None
    assert peak is not None
    gpus = Scenario.model_validate(report.scenario).world_size
    per_token = 1 / time.tokens_per_s_per_gpu
    dollars = time.cost.per_million_tokens if time.cost and time.cost.per_million_tokens is not None else float("inf")
    return {"tokens": (per_token, peak), "step": (time.step_s, gpus, peak), "cost": (dollars, time.step_s),
            "peak": (peak, per_token), "gpus": (gpus, per_token)}[name]


def found_values(layouts: Sequence[FoundLayout], names: Sequence[str]) -> list[tuple[tuple[float, ...], ...]]:
    """Values of a search's layouts, as `_value` has those of reports."""
    return [tuple(_of_layout(one)[name] for name in names) for one in layouts]


def _of_layout(one: FoundLayout) -> Mapping[str, tuple[float, ...]]:
    per_token = 1 / one.tokens_per_s_per_gpu
    dollars = float("inf") if one.usd_per_million_tokens is None else one.usd_per_million_tokens
    return {"tokens": (per_token, one.peak_bytes), "step": (one.step_s, one.num_gpus, one.peak_bytes),
            "cost": (dollars, one.step_s), "peak": (one.peak_bytes, per_token), "gpus": (one.num_gpus, per_token)}


def differences(space: Space, names: Sequence[str], top: int = 10, workers: int = 1) -> tuple[list[str], str]:
    """(differences between the search and all layouts, [] for none; a line about the search)."""
    place = processes(workers) if workers > 1 else None
    answer = search(Search(space, tuple(OBJECTIVES[name] for name in names), top, place=place))
    best, front = all_simulated(space, names, top)
    mine = [values[0] for values in found_values(answer.best, names)]
    mine_front = {tuple(value[0] for value in values) for values in found_values(answer.pareto, names)}
    problems = []
    if not _alike(mine, best):
        problems.append(f"best: search {mine[:3]}, all {best[:3]}")
    if not _alike(sorted(mine_front), sorted(front)):
        problems.append(f"Pareto: search {len(mine_front)}, all {len(front)}")
    counts = answer.counts
    return problems, (f"{counts.candidates} layouts, {counts.refused} refused, {counts.at_rest} at rest, "
                      f"{counts.oom} oom, {counts.timed} timed, {len(best)} best, {len(front)} Pareto")


def _alike(ours: Sequence[tuple[float, ...]], theirs: Sequence[tuple[float, ...]]) -> bool:
    """True if all numbers are equal up to rounding of a quotient."""
    return len(ours) == len(theirs) and all(
        abs(a - b) <= 1e-12 * max(abs(a), abs(b)) or a == b
        for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))


def main() -> int:
    """Compares as many spaces as asked, each with at least `--least` candidates; 1 for a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=int, default=200)
    parser.add_argument("--most", type=int, default=2500)
    asked = parser.parse_args()
    generator, failed, done = random.Random(asked.seed), 0, 0
    while done < asked.spaces:
        space, names = drawn_space(generator)
        if not asked.least <= sum(1 for _ in candidates(space)) <= asked.most:
            continue
        problems, line = differences(space, names)
        if ", 0 best," in line and not problems:
            continue  # a space in which nothing fits says little
        done += 1
        failed += bool(problems)
        scenario = space.base
        sys.stdout.write(f"{scenario.model} {'+'.join(space.frameworks)} {space.gpus} {scenario.training.method} "
                         f"{','.join(names)}: {line}: {'; '.join(problems) or 'the same'}\n")
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
