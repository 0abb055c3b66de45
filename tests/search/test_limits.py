"""Limits over free layouts: the value holds, its neighbour does not, by a search at each."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.inputs.scenario import Scenario
from simcore.results.limit import Quantity
from simcore.search.condition import condition
from simcore.search.limits import cheapest, free_limit, free_machine
from simcore.search.objective import OBJECTIVES
from simcore.search.search import Search, search
from simcore.search.space import Space, space_of


def base(**more: Any) -> Scenario:
    return Scenario.model_validate({
        "name": "base", "model": "llama-3.2-3b", "topology": "dgx-h100", "framework": "fsdp2",
        "training": {"seq_len": 2048}, **more})


def question(space: Space) -> Search:
    return Search(space, (OBJECTIVES["tokens"], OBJECTIVES["peak"]), top=3)


def test_fewest_gpus_hold_and_one_less_does_not() -> None:
    small = base(limits={"usable_memory": "24 GiB"})
    space = space_of(small, free={"mesh": ()})
    found = free_limit(question(space), "gpus")
    assert isinstance(found.value, int)
    assert found.value > 1
    assert found.beyond == found.value - 1
    assert found.nearest_bytes is not None
    assert found.best is not None
    assert {one.num_gpus for one in found.best.best} == {found.value}
    for number in range(1, found.value):
        assert not search(question(space_of(small, gpus=(number,), free={"mesh": ()}))).best


@pytest.mark.parametrize(("quantity", "key", "unit"), [
    ("sequence", "training.seq_len", 1024), ("micro_batch", "training.micro_batch_size", 1)])
def test_the_largest_value_holds_and_the_next_does_not(quantity: Quantity, key: str, unit: int) -> None:
    scenario = base(mesh={"dp_shard": 4})
    space = space_of(scenario, free={"training.recompute": (), key: (1024,)})
    found = free_limit(question(space), quantity)
    assert isinstance(found.value, int)
    assert found.beyond == found.value + unit
    for value, fits in ((found.value, True), (found.beyond, False)):
        there = search(question(space_of(scenario, free={"training.recompute": (), key: (value,)})))
        assert bool(there.best) is fits
    assert found.best is not None
    assert {one.keys["training.recompute"] for one in found.best.best} == {"full"}


def test_only_the_given_numbers_of_gpus_are_tried() -> None:
    small = base(limits={"usable_memory": "24 GiB"})
    found = free_limit(question(space_of(small, gpus=(8, 4, 16), free={"mesh": ()})), "gpus")
    assert found.value in (4, 8, 16)


def test_what_never_fits_has_no_value_and_what_is_refused_is_told() -> None:
    never = base(limits={"usable_memory": "1 GiB"}, mesh={"dp_shard": 2})
    assert free_limit(question(space_of(never, free={"training.recompute": ()})), "micro_batch").value is None
    with pytest.raises(InputError, match="refused"):
        free_limit(question(space_of(base(mesh={"tp": 2}), free={"training.recompute": ()})), "sequence")
    nothing = space_of(base(), free={"mesh.tp": ()}, conditions=[condition("mesh.tp == 3 and mesh.tp == 2")])
    assert free_limit(question(nothing), "gpus").value is None


def test_numbers_that_no_layout_can_have_do_not_hide_those_between_them() -> None:
    """A global batch of 6 goes with 1, 2, 3 and 6 ranks of data parallelism: not with 4 or 8."""
    six = base(limits={"usable_memory": "22 GiB"}, training={"seq_len": 2048, "global_batch_size": 6})
    free = {"mesh.dp_shard": ()}
    found = free_limit(question(space_of(six, free=free)), "gpus")
    fits = [number for number in range(1, 13) if _fits(space_of(six, gpus=(number,), free=free))]
    assert fits == [6]
    assert found.value == 6
    assert found.beyond == 3


def _fits(space: Space) -> bool:
    try:
        return bool(search(question(space)).best)
    except InputError:
        return False


def test_micro_batches_are_those_that_divide_the_global_batch() -> None:
    """A global batch of 12 on 2 ranks has micro batches of 1, 2, 3 and 6 sequences: not 4."""
    twelve = base(mesh={"dp_shard": 2}, training={"seq_len": 1024, "global_batch_size": 12, "recompute": "full"})
    found = free_limit(question(space_of(twelve, free={"training.micro_batch_size": ()})), "micro_batch")
    assert (found.value, found.beyond) == (6, 12)
    assert found.why.startswith("refused: ")


def test_the_largest_global_batch_over_layouts_is_that_of_a_search() -> None:
    stages = Scenario.model_validate({
        "name": "base", "model": "llama-3-8b", "topology": "dgx-h100", "framework": "automodel",
        "limits": {"usable_memory": "40 GiB"}, "mesh": {"pp": 2}, "training": {"seq_len": 1024, "method": "lora"}})
    found = free_limit(question(space_of(stages, free={"training.recompute": ("none",)})), "global_batch")
    assert isinstance(found.value, int)
    assert found.beyond == found.value + 2
    for value, fits in ((found.value, True), (found.beyond, False)):
        there = space_of(stages, free={"training.recompute": ("none",), "training.global_batch_size": (value,)})
        assert bool(search(question(there)).best) is fits


@pytest.mark.parametrize("text", ["peak_gib < 20", "step_s < 0.5"])
def test_conditions_on_results_decide_too(text: str) -> None:
    space = space_of(base(mesh={"dp_shard": 2}), free={"training.recompute": ()})
    plain = free_limit(question(space), "sequence")
    bound = free_limit(question(space_of(base(mesh={"dp_shard": 2}), free={"training.recompute": ()},
                                         conditions=[condition(text)])), "sequence")
    assert isinstance(plain.value, int)
    assert bound.value is None or (isinstance(bound.value, int) and bound.value < plain.value)
    if bound.value is not None:
        assert bound.best is not None
        assert bound.best.best


def test_the_smallest_machine_over_layouts_is_that_of_searches() -> None:
    names = ("dgx-h200", "l40s", "rtx-4090", "dgx-h100")
    asked = base(training={"seq_len": 8192, "global_batch_size": 8})
    found = free_machine(question(space_of(asked, gpus=(2,), free={"mesh": ()})), names)
    holds = {name: _fits(space_of(asked, gpus=(2,), topologies=(name,), free={"mesh": ()})) for name in names}
    ordered = ["rtx-4090", "l40s", "dgx-h100", "dgx-h200"]
    assert found.value == next(name for name in ordered if holds[name])
    assert found.beyond == ordered[ordered.index(str(found.value)) - 1]
    assert found.why


def test_the_cheapest_is_the_first_of_a_ranking_by_cost() -> None:
    space = space_of(base(training={"seq_len": 2048, "global_batch_size": 16}), gpus=(1, 2, 4), free={"mesh": ()})
    by_cost = Search(space, (OBJECTIVES["cost"], OBJECTIVES["peak"]), top=3)
    found = cheapest(by_cost)
    first, second, *_ = search(by_cost).best
    assert (found.value, found.beyond) == (first.usd_per_million_tokens, second.usd_per_million_tokens)
    unpriced = base(training={"seq_len": 256, "method": "lora"}, topology="rtx-4080")
    with pytest.raises(InputError, match="no price"):
        cheapest(Search(space_of(unpriced, free={"training.recompute": ()}), (OBJECTIVES["cost"],)))
