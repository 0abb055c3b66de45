"""Bands by class of layout, and the stored table: `python -m tests.memory.test_band --write` makes it again.

One residual an observation: of the allocated peak, else of what is reserved, else of the device.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from functools import cache

import pytest

from measured_memory import compared_memory, measured_rows
from simcore.errors import RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.inputs.shipped import data_folder
from simcore.memory.band import EVERY, FEW, band_of, layout_class, make_bands, read_bands
from simcore.simulate import simulate
from simcore.validation.runs import Measured
from simcore.validation.validate import Compared

NEAREST_FIRST = ("allocated_peak", "reserved_peak", "device_peak")
AFTERWARDS = ("arctic-training", "llamafactory", "soup")
"""Groups that are kept out of every fit as a whole: they are in no band."""
HELD = 0.75
"""Share of today's residuals that a stored band must hold: made to hold 80%, while the engine moves a little."""


@cache
def residuals() -> dict[str, list[float]]:
    """Measured over simulated of every observation that can be simulated, by class."""
    scenario_of = {one.row.id: one for one in measured_rows()}
    found: dict[str, list[float]] = defaultdict(list)
    nearest: dict[tuple[str, object], Compared] = {}
    for one in sorted(compared_memory().compared, key=_nearness, reverse=True):
        if one.group not in AFTERWARDS:
            nearest[one.rows[0], one.rank] = one
    for (row, _), one in sorted(nearest.items(), key=str):
        found[_class_of(scenario_of[row])].append(one.measured_bytes / one.simulated_bytes)
    return dict(found)


def _nearness(compared: Compared) -> int:
    return NEAREST_FIRST.index(compared.quantity) if compared.quantity in NEAREST_FIRST else len(NEAREST_FIRST)


def _class_of(measured: Measured) -> str:
    assert measured.entry is not None
    assert measured.entry.scenario is not None
    return layout_class(*prepare(measured.entry.scenario))


def asked(framework: str, model: str = "nemotron-3-tiny", **training: object) -> Scenario:
    data = {"name": "x", "model": model, "framework": framework, "topology": "dgx-h100", "mesh": {"dp_shard": 2},
            "training": {"seq_len": 64, **training}}
    return parse_scenario(parse_document(json.dumps(data), "x.json"))


def test_the_stored_table_holds_the_residuals_of_today() -> None:
    """Not so: make it again, and say in the commit what moved."""
    for name, found in residuals().items():
        band = read_bands()[name]
        held = [row for row in found if band.low - 5e-4 <= row <= band.high + 5e-4]
        assert len(held) >= HELD * len(found), f"{name}: {len(held)} of {len(found)} in {band}"
        assert band.low <= 1 <= band.high


def test_every_class_is_in_the_table() -> None:
    assert set(read_bands()) == {EVERY, *residuals()}
    assert read_bands()[EVERY].num == sum(map(len, residuals().values()))


@pytest.mark.parametrize(("scenario", "name"), [
    (asked("fsdp2"), "gathered, hybrid, full"), (asked("automodel", method="lora"), "gathered, hybrid, lora"),
    (asked("megatron", "llama-tiny"), "resident, dense, full"), (asked("megatron", "deepseek-v2-lite"),
                                                                 "resident, moe, full")],
    ids=["fsdp2", "automodel", "megatron", "experts"])
def test_classes(scenario: Scenario, name: str) -> None:
    assert layout_class(*prepare(scenario)) == name


def test_quantiles_hold_the_simulated_number() -> None:
    table = json.loads(make_bands({"a": [1.01 + n / 100 for n in range(11)], "b": [0.9]}))
    assert table["a"] == {"num": 11, "low": 1.0, "high": 1.1}
    assert table["b"] == {"num": 1, "low": 0.9, "high": 1.0}
    assert table[EVERY]["num"] == 12


def test_few_observations_take_in_all_classes() -> None:
    every = read_bands()[EVERY]
    for name, band in read_bands().items():
        if name != EVERY and band.num < FEW:
            assert band_of(name).low == min(band.low, every.low)
            assert band_of(name).num == band.num
    none = band_of("a class that nobody measured")
    assert (none.num, none.low, none.high) == (0, every.low, every.high)


def test_a_class_without_measured_runs_says_so() -> None:
    told = {a.what: a for a in simulate(asked("automodel", method="lora"), timed=False).assumptions}["band_bytes"]
    measured = band_of("gathered, hybrid, lora").num > 0
    assert ("unvalidated" in told.value) != measured
    assert told.kind == ("calibrated" if measured else "assumed")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    try:
        (data_folder("measured") / "bands.json").write_text(make_bands(residuals()), encoding="utf-8", newline="\n")
    except RankscopeError as error:
        raise SystemExit(str(error)) from None
