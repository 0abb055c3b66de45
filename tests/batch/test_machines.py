"""The smallest GPU of a list: every smaller one was simulated, and the scenario does not surely fit on it."""

from __future__ import annotations

import pytest

import small
from simcore.batch.machines import by_size, machine_of
from simcore.errors import InputError
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.simulate import simulate

CARDS = ("dgx-h200", "rtx-4090", "dgx-h100", "rtx-3080", "l40s", "dgx-a100")


def asked(seq_len: int = 2048) -> Scenario:
    return small.scenario("ddp", {}, model="llama-3-8b", seq_len=seq_len, method="lora", recompute="full")


def test_machines_are_ordered_by_memory_then_by_price() -> None:
    assert by_size(asked(), CARDS) == ["rtx-3080", "rtx-4090", "l40s", "dgx-h100", "dgx-a100", "dgx-h200"]


@pytest.mark.parametrize("seq_len", [512, 8192, 32768])
def test_the_smallest_is_what_trying_all_of_them_gives(seq_len: int) -> None:
    found = machine_of(asked(seq_len), CARDS)
    ordered = by_size(asked(), CARDS)
    verdicts = {name: simulate(changed(asked(seq_len), {"topology": name}), timed=False).job_verdict
                for name in ordered}
    assert found.value == next(name for name in ordered if verdicts[name] == "fits")
    assert found.possible == next(name for name in ordered if verdicts[name] != "oom")
    assert found.keys == {"topology": found.value}
    assert found.beyond == ordered[ordered.index(str(found.value)) - 1]
    assert found.beyond_verdict == verdicts[str(found.beyond)]
    assert found.why


def test_none_fits_and_all_refuse_differ() -> None:
    never = machine_of(asked(2**20), ("rtx-3080", "rtx-4090"))
    assert (never.value, never.beyond, never.beyond_verdict, never.problem) == (None, "rtx-4090", "oom", "")
    refused = machine_of(changed(asked(), {"mesh.dp_replicate": 64}), ("rtx-3080", "rtx-4090"))
    assert (refused.value, refused.num_simulated) == (None, 0)
    assert "64 ranks" in refused.problem


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="no topology 'moon'"):
        by_size(asked(), ("moon",))
    with pytest.raises(InputError, match="expected machines"):
        machine_of(asked(), ())
