"""The ledger against a plain running sum."""

from __future__ import annotations

import numpy as np
import pytest

import small
from simcore.memory.ledger import balance, first_step, running
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.program import Program
from simcore.program.tile import LAYER, OP, SLOT
from simcore.recording.tape import Kernel, Op


def program() -> Program:
    """A parameter of 100; forward 10 and 30, freed 10; backward 25 and 5."""
    out = Builder(Tables())
    weight, kept, temp = (out.tables.slot(*owner) for owner in (
        ("w", "sharded_param"), ("x", "activation"), ("grad", "backward_temp")))
    out.alloc(0, weight, 100)
    out.at(Phase.FORWARD, 0)
    out.mark(out.tables.hook("fwd:begin"))
    out.alloc(1, kept, 10)
    out.alloc(2, kept, 30)
    out.free(1, kept, 10)
    out.at(Phase.BACKWARD)
    out.mark(out.tables.hook("bwd:begin"))
    out.alloc(2, temp, 25)
    out.free(2, kept, 30)
    out.alloc(1, temp, 5)
    out.free(2, temp, 25)
    out.free(1, temp, 5)
    out.at(Phase.OPTIMIZER)
    out.mark(out.tables.hook("opt:begin"))
    return small.written(out, "embedding", "layers.0", "layers.1")


def test_the_highest_moment() -> None:
    peak = balance(program())
    assert (peak.peak_bytes, peak.phase, peak.event, peak.layer, peak.microbatch) == (
        155, "backward", "bwd:begin", "layers.1", 0)
    assert peak.by_category == {"sharded_param": 100, "activation": 30, "backward_temp": 25}
    assert peak.top == (("embedding/w", "sharded_param", 100), ("layers.1/x", "activation", 30),
                         ("layers.1/grad", "backward_temp", 25))
    assert peak.end_bytes == 100


def test_a_phase_begins_with_what_was_there() -> None:
    assert balance(program()).by_phase == {"forward": 140, "backward": 155, "optimizer": 100}


def test_running_sum() -> None:
    assert running(program()).tolist() == [100, 100, 110, 140, 130, 130, 155, 125, 130, 105, 100, 100]


def test_the_first_step_makes_its_states_in_the_optimizers_turn() -> None:
    assert first_step(balance(program()), 40) == 155 - 40
    assert first_step(balance(program()), 90) == 100


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_first_scans_are_timed_beside_a_buffer(recompute: str) -> None:
    """Row by row: until the last scan of the first tile with one, in forward and in backward."""
    real = small.program_of("megatron", {"dp_shard": 2}, microbatches=2, recompute=recompute)
    sums, scans = running(real), (real.columns[:, OP] == Op.COMPUTE) & (real.columns[:, SLOT] == Kernel.MAMBA_SCAN)
    tops = []
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        inside = np.flatnonzero(scans & (real.phase == phase))
        layer = real.columns[inside[0], LAYER]
        last = [at for at in inside if real.columns[at, LAYER] == layer and real.microbatch[at] == 0][-1]
        marks = np.flatnonzero(real.columns[:last, LAYER] != layer)
        tops.append(int(sums[marks[-1] + 1:last + 1].max()))
    peak = balance(real)
    assert peak.first_scan_bytes is not None
    assert peak.first_scan_bytes >= max(tops)
    assert peak.first_scan_bytes <= peak.peak_bytes
    assert first_step(peak, 7) == max(peak.first_scan_bytes + 256 * 2**20 - 7, peak.by_phase["optimizer"])


def test_a_model_without_mamba_times_nothing() -> None:
    peak = balance(small.program_of("megatron", {"dp_shard": 2}, model="llama-tiny"))
    assert peak.first_scan_bytes is None


def test_top_is_cut() -> None:
    assert len(balance(program(), num_top=1).top) == 1


@pytest.mark.parametrize("name", small.FRAMEWORKS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_sums_over_tiles_are_sums_over_rows(name: str, recompute: str) -> None:
    """Sums over pieces must equal the sum over all single rows."""
    mesh = {"dp_shard": 4, "ep": 2}
    real = small.program_of(name, mesh, microbatches=2, recompute=recompute)
    total, found = running(real), balance(real)
    row = int(np.argmax(total))
    assert found.peak_bytes == total[row]
    assert found.phase == Phase(int(real.phase[row])).name.lower()
    assert found.microbatch == real.microbatch[row]
    sizes: dict[str, int] = {}
    categories = [category for _, category in real.tables.slots]
    for op, _, slot, amount, _, _ in real.columns[:row + 1].tolist():
        if op in (Op.ALLOC, Op.FREE):
            sizes[categories[slot]] = sizes.get(categories[slot], 0) + amount
    assert found.by_category == {name: size for name, size in sizes.items() if size}
    assert sum(found.by_category.values()) == found.peak_bytes
    assert found.by_phase["forward"] >= max(total[real.phase == Phase.FORWARD])
    assert found.by_phase["backward"] == max(total[np.isin(real.phase, (Phase.BACKWARD, Phase.RECOMPUTE))])
