"""The search: its answer is that of simulating every layout, whatever is pruned, for any number of processes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from search.exhaustive import differences, drawn_space
from simcore.errors import InputError
from simcore.executors.processes import processes
from simcore.inputs.scenario import Scenario
from simcore.search.condition import condition
from simcore.search.objective import OBJECTIVES
from simcore.search.search import Search, search
from simcore.search.space import Space, candidates, space_of

BASE = Scenario.model_validate({
    "name": "base", "model": "nemotron-3-nano-30b-a3b", "topology": "dgx-h100", "framework": "automodel",
    "training": {"seq_len": 4096, "global_batch_size": 8, "method": "lora"}})
SMALL: dict[str, tuple[Any, ...]] = {"mesh": (), "training.recompute": (), "training.micro_batch_size": (1, 2)}
BOTH = OBJECTIVES["tokens"], OBJECTIVES["peak"]


def small(**asked: Any) -> Space:
    return space_of(BASE, gpus=(2,), frameworks=("automodel", "megatron"), free=SMALL, **asked)


@pytest.mark.parametrize("names", [
    ("tokens", "peak"), ("peak", "tokens"), ("gpus", "tokens", "peak"), ("cost", "step")])
def test_the_answer_is_that_of_all_layouts(names: tuple[str, ...]) -> None:
    problems, line = differences(small(), names, top=3)
    assert not problems, line


@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_that_of_all_layouts_in_drawn_spaces(seed: int) -> None:
    generator = random.Random(seed)
    space, names = drawn_space(generator)
    while not 8 <= sum(1 for _ in candidates(space)) <= 600:
        space, names = drawn_space(generator)
    problems, line = differences(space, names, top=5)
    assert not problems, line


def test_bounds_leave_layouts_out_and_change_nothing() -> None:
    space = space_of(BASE, gpus=(2,), frameworks=("automodel", "megatron"))
    pruned, whole = (search(Search(space, BOTH, top=1, prunes=prunes)) for prunes in (True, False))
    assert pruned.counts.slower > 0
    assert whole.counts.slower == 0
    assert pruned.counts.timed < whole.counts.timed
    assert (pruned.best, pruned.pareto) == (whole.best, whole.pareto)


def test_counts_add_up() -> None:
    counts = search(Search(small(), BOTH)).counts
    assert counts.candidates == (counts.refused + counts.at_rest + counts.oom + counts.unsure + counts.excluded
                                 + counts.slower + counts.alike + counts.ranked)
    assert counts.simulated == counts.candidates - counts.refused - counts.at_rest


def test_any_number_of_processes_gives_the_same_bytes() -> None:
    one, two = (search(Search(small(), BOTH, place=place)).model_dump_json() for place in (None, processes(2)))
    assert one == two


def test_conditions_on_results_hold_in_the_answer() -> None:
    free = search(Search(small(), BOTH))
    limit = sorted(one.peak_bytes for one in free.best)[1] / 2**30
    asked = [condition(f"peak_gib <= {limit!r}"), condition("tokens_per_s_per_gpu > 1000")]
    found = search(Search(small(conditions=asked), BOTH))
    assert found.best
    assert all(one.peak_bytes / 2**30 <= limit and one.tokens_per_s_per_gpu > 1000 for one in found.best)
    assert found.counts.excluded > 0


def test_unsure_layouts_are_ranked_only_if_asked() -> None:
    free = {**SMALL, "training.seq_len": (6144, 7168, 8192, 10240, 12288)}
    space = space_of(BASE, gpus=(2,), free=free)
    sure, both = (search(Search(space, BOTH, top=100, unsure=unsure)) for unsure in (False, True))
    assert sure.counts.unsure > 0
    assert {one.verdict for one in sure.best} == {"fits"}
    assert {one.verdict for one in both.best} == {"fits", "unsure"}


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(InputError, match="no layout"):
        search(Search(small(conditions=[condition("mesh.tp == 3")]), BOTH))
