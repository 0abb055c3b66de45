"""The stored search of `scenarios/nano-explore`: a part of it searched again, and its layouts simulated."""

from __future__ import annotations

from typing import Any

import pytest

import nano_explore
from simcore.simulate import simulate

BEST = [(method, gpus) for method, numbers in nano_explore.stored().items() for gpus, one in numbers.items()
        if one["best"]]


def test_every_method_and_number_of_gpus_is_stored() -> None:
    for method in nano_explore.METHODS:
        search = nano_explore.asked(method).search
        assert search is not None
        assert list(nano_explore.stored()[method]) == [str(gpus) for gpus in search.gpus]


@pytest.mark.parametrize("method", nano_explore.METHODS)
def test_a_search_on_few_gpus_finds_what_is_stored(method: str) -> None:
    """4 GPUs, all frameworks."""
    found = nano_explore.facts(nano_explore.searched(nano_explore.asked(method), 4))
    assert found == nano_explore.stored()[method]["4"]


@pytest.mark.parametrize(("method", "gpus"), BEST)
def test_the_best_layout_is_what_a_run_of_it_gives(method: str, gpus: str) -> None:
    row = nano_explore.stored()[method][gpus]["best"][0]
    report = simulate(with_keys(method, row["keys"]))
    assert report.status == "ok", report.problems
    assert report.time is not None
    assert (report.job_verdict, report.highest_bytes) == (row["verdict"], row["peak_bytes"])
    assert float(f"{report.time.step_s:.4g}") == row["step_s"]


def with_keys(method: str, keys: dict[str, Any]) -> Any:
    return nano_explore.asked(method, [f"{key}={value}" for key, value in keys.items()])


def test_no_ep_is_better_than_the_best() -> None:
    for numbers in nano_explore.stored().values():
        for one in numbers.values():
            fastest = [row["tokens_per_s_per_gpu"] for row in one["best"]]
            assert max((row["tokens_per_s_per_gpu"] for row in one["by_ep"].values()), default=0) == max(fastest,
                                                                                                         default=0)


def test_ep_4_is_the_fastest_on_4_gpus_alone() -> None:
    """As the README says, beside who has run the first places, and that full fine-tuning needs more."""
    best = {(method, gpus): nano_explore.stored()[method][gpus]["best"][0] for method, gpus in BEST}
    assert [case for case, row in best.items() if row["keys"].get("mesh.ep", 1) == 4] == [("lora", "4")]
    assert {row["evidence"] for row in best.values()} == {"none", "class"}
    assert not nano_explore.stored()["full"]["4"]["best"]
