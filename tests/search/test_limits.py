"""Limits over free layouts: the value holds, its neighbour does not, by a search at each."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.inputs.scenario import Scenario
from simcore.results.limit import Quantity
from simcore.search.condition import condition
from simcore.search.limits import free_limit
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
    assert found.value is not None
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
    assert found.value is not None
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
    nothing = space_of(base(), free={"mesh": ()}, conditions=[condition("mesh.tp == 3 and mesh.tp == 2")])
    assert free_limit(question(nothing), "gpus").value is None
