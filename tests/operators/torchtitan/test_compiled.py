"""Tapes of torchtitan's compiled blocks and loss against Inductor's own code, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import pytest

from checkout import ROOT
from compiled_tape import changes_of, measured_of, top
from simcore.models.blocks import LayerKind, Loss
from simcore.models.graph import build, model_config
from simcore.models.tensor import TensorSpec
from simcore.operators.torchtitan import implementation as torchtitan
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param

TRUTH = ROOT / "tests/truth" / "tape" / "torchtitan-compiled-0.2.2-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
MODES = {"op": "per_op"}
COLUMNS = 0.004
"""Small tensors, left out of the highest moment: inverse norms and sums over rows, scales and largest values of fp8."""
CASTS = 0.065
"""Inductor's CPU backend casts all weights of a pass in one kernel; here each is cast where it is read."""
REUSED = 0.1
"""With a scale a row and tensor parallelism Inductor's memory plan keeps casts of the MLP for attention's."""
PIECES = 0.008
"""Beside collectives Inductor runs products of the attention's half in another order, which one sequence shows."""
PLACES = [(name, at) for name in CASES for at in ("forward", "backward")]


def kind_of(case: dict[str, Any]) -> tuple[LayerKind, tuple[TensorSpec, ...]]:
    config = model_config("qwen3-8b" if "head_dim" in case["model"] else "llama-3.1-8b", case["model"], "test")
    graph = build(config, "torchtitan")
    wanted = next(i for i, kind in enumerate(graph.kinds)
                  if (isinstance(kind.block, Loss) if case.get("of") == "loss" else kind.block is None))
    return graph.kinds[wanted], graph.tensors[wanted]


def cut(spec: TensorSpec, tp: int) -> tuple[int, ...]:
    return tuple(size // (tp if name in ("heads", "kv_heads", "ffn") else 1)
                 for name, size in zip(spec.dims, spec.shape, strict=True))


@cache
def recorded(name: str) -> tuple[RecordedLayer, dict[tuple[str, str], int]]:
    case = CASES[name]["case"]
    kind, specs = kind_of(case)
    fp8 = case.get("fp8", "")
    mode, tp = case.get("checkpoint", "none"), case.get("tp", 1)
    gathered = "fp8" if fp8 == "gathered" else "bf16"
    params = {spec.name: Param(spec.name, cut(spec, tp), gathered if len(spec.shape) == 2 else "bf16", trainable=True)
              for spec in specs}
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, "torchtitan", MODES.get(mode, mode), tp, tp > 1,
              options=TorchtitanOptions(compiled_blocks=True, compiled_loss=True,
                                        repeat_kv=case.get("repeat_kv", False),
                                        async_tp=case.get("async_tp", False), fp8_rows=fp8 == "rows"))
    slots: dict[tuple[str, str], int] = {}
    return torchtitan.record(replace(kind, fp8=bool(fp8)), run, slots, {}), slots


def changes(name: str, at: str) -> list[int]:
    """Births and deaths, without what is made outside the block: its input, its output's gradient, Qwen3's table."""
    tape, slots = recorded(name)
    outside = {slots.get(("to_bf16", "activation"))} if "head_dim" in CASES[name]["case"]["model"] else set()
    return changes_of(getattr(tape, at), outside)


def measured(name: str, at: str) -> list[int]:
    return measured_of(CASES[name], at)


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_net_bytes_are_those_of_inductor_s_code(name: str, at: str) -> None:
    mine, truth = changes(name, at), measured(name, at)
    assert abs(sum(mine) - sum(truth)) <= COLUMNS * top(truth)


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_the_most_that_is_there_is_that_of_inductor_s_code(name: str, at: str) -> None:
    mine, truth = top(changes(name, at)), top(measured(name, at))
    case = CASES[name]["case"]
    near = CASTS if case.get("fp8") else PIECES if case.get("async_tp") else COLUMNS
    assert abs(mine - truth) <= (REUSED if case.get("fp8") == "rows" and case.get("tp") else near) * truth


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]["case"].get("of") != "loss"])
def test_what_is_kept_beside_inputs_has_the_measured_sizes(name: str) -> None:
    """Numbers of rows and the conjugate rotary table apart, which are not modelled."""
    sizes = {"bfloat16": 2, "float32": 4}
    kept = sum(prod(shape) * sizes[dtype] for tensor, dtype, shape in CASES[name]["kept"]
               if not tensor.startswith(("primals", "_conj")) and shape and shape[-1] > 1)
    case = CASES[name]["case"]
    out = 2 * case["batch"] * case["seq"] * case["model"]["hidden_size"] // case.get("tp", 1)
    assert sum(changes(name, "forward")) == out + kept


def sent(run: LayerWorkload, kind: LayerKind) -> list[Counter[str]]:
    """Collectives of both passes."""
    comms: dict[tuple[str, str, str], int] = {}
    tape = torchtitan.record(kind, run, {}, comms)
    names = {number: f"{name} {axis}" for (name, axis, _), number in comms.items()}
    return [Counter(names[row[2]] for row in section.rows if row[0] == Op.COLLECTIVE)
            for section in (tape.forward, tape.backward)]


def test_tensor_parallelism_gathers_and_scatters_each_way() -> None:
    """Before and after attention and the MLP; backward makes the first half again."""
    kind, specs = kind_of(CASES["small-op"]["case"])
    params = {spec.name: Param(spec.name, cut(spec, 2), "bf16", trainable=True) for spec in specs}
    run = LayerWorkload(1, 256, "bf16", params, "torchtitan", "full", 2, sequence_parallel=True,
              options=TorchtitanOptions(compiled_blocks=True))
    assert sent(run, kind) == [
        {"all_gather tp": 2, "reduce_scatter tp": 2}, {"all_gather tp": 4, "reduce_scatter tp": 3, "all_reduce tp": 2}]


def test_a_scale_a_row_gathers_in_16_bits_and_reduces_largest_values() -> None:
    """Bytes of [Note: a scale a row]: hidden states as without fp8, and the largest values of rows that ranks share."""
    kind, specs = kind_of(CASES["small-op"]["case"])
    params = {spec.name: Param(spec.name, cut(spec, 2), "bf16", trainable=True) for spec in specs}
    run = LayerWorkload(1, 256, "bf16", params, "torchtitan", "full", 2, sequence_parallel=True)
    found = {name: sent(replace(run, options=TorchtitanOptions(compiled_blocks=True, fp8_rows=name == "row")),
                        replace(kind, fp8=name != "16")) for name in ("16", "tensor", "row")}
    assert found["row"][0] - found["16"][0] == {"all_reduce tp": 4}
    assert found["row"][1] - found["16"][1] == {"all_reduce tp": 2 + 2 * 5}
    assert found["tensor"][1] == found["16"][1]


def test_context_parallelism_sends_what_eager_attention_sends() -> None:
    kind, specs = kind_of(CASES["small-op"]["case"])
    params = {spec.name: Param(spec.name, spec.shape, "bf16", trainable=True) for spec in specs}
    eager, compiled = (LayerWorkload(1, 256, "bf16", params, "torchtitan", "full", cp=4, options=options)
                       for options in (TorchtitanOptions(), TorchtitanOptions(compiled_blocks=True)))
    assert sent(compiled, kind) == sent(eager, kind)
