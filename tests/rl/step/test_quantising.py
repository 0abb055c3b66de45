"""Weights that an engine quantises as they arrive: bytes beside a refit's buffers, and its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from simcore.models.graph import architecture_of, model_config
from simcore.rl.step.phases import GrpoStep, engine_step, grpo_step
from simcore.rl.step.quantising import Quantising, quantising_of
from simcore.rl.step.refit import ipc_buffers
from simcore.vllm.engine import Engine
from simcore.vllm.quantized.recipe import refitted
from simcore.vllm.quantized.tensor import Gpu
from vllm.test_engine import H100

LLAMA = architecture_of(model_config("llama-3.1-8b", None, ""))
LINEARS, LARGEST = 32 * 4096 * (6144 + 4096 + 3 * 14336), 4096 * 14336


def llama(*, quantised: bool, colocated: bool = True) -> GrpoStep:
    given = turn(colocated=colocated)
    recipe = refitted(Gpu((9, 0), 132)) if quantised else None
    assert isinstance(given.engine, Engine)
    return replace(given, engine=replace(given.engine, architecture=LLAMA, recipe=recipe))


def test_every_linear_is_quantised_whole() -> None:
    """Whatever part a rank keeps; three copies in fp32 of the largest matrix, and four numbers for each block."""
    found = quantising_of(llama(quantised=True).engine)
    assert found == Quantising(LINEARS, 3 * 4 * LARGEST + 16 * LARGEST // 128**2)
    assert quantising_of(llama(quantised=False).engine) == Quantising(0, 0)


def test_one_buffers_weights_are_held_in_8_bits() -> None:
    found = Quantising(10**9, 7)
    assert found.held_bytes(2 * 128**2) == 128**2 + 4 + 7
    assert found.held_bytes(10**10) == 10**9 + 10**9 // 128**2 * 4 + 7


def test_a_refit_holds_them_beside_its_buffers() -> None:
    step = llama(quantised=True)
    engine, journal = step.engine, grpo_step(POLICY_OF, step, H100)
    stays = sum(engine.outside().values()) + engine.graph_bytes + engine.workspace_bytes
    free = H100.device.usable_bytes - stays - engine.weight_bytes - (1 + 3) * GIB  # context and parameters
    buffers, one = ipc_buffers(free, 0.3, GIB)["buffer"], ipc_buffers(free, 0.3, 0)["buffer"] // 2
    more = step.quantising.held_bytes(one)
    assert more > 4 * GIB
    held = max(sum(size for (owner, _), size in entry.held.items() if owner == "refit") for entry in journal.entries)
    assert held == buffers + GIB + more  # and one gathered tensor


def test_quantising_takes_the_time_of_its_bytes() -> None:
    rate = H100.device.memory_bandwidth.si * H100.efficiency.kernels.copy_.memory.si
    parts = {quantised: grpo_step(POLICY_OF, llama(quantised=quantised), H100).phases[0].parts
             for quantised in (True, False)}
    assert parts[True]["quantising"] == pytest.approx(47 * LINEARS / rate * 1e9)
    assert "quantising" not in parts[False]
    assert parts[True]["packing"] == parts[False]["packing"]


def test_engines_elsewhere_quantise_where_they_are() -> None:
    journals = []
    for quantised in (True, False):
        step = llama(quantised=quantised, colocated=False)
        train = grpo_step(POLICY_OF, step, H100)
        journals.append((train, engine_step(step, H100, {phase.phase: phase.ns for phase in train.phases})))
    (train, beside), (plain, whole) = journals
    assert owned(train, "refit", "refit") == owned(plain, "refit", "refit")
    assert owned(beside, "refit", "refit") > owned(whole, "refit", "refit") + 12 * LARGEST
