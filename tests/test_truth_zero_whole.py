"""Messages and tensors of DeepSpeed at stage 0: `tests/truth/probe_zero_whole.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.frameworks.deepspeed import whole_hooks
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.tape import Op

TRUTH: dict[str, Any] = {name: case for file in ("whole", "drawn-whole") for name, case in json.loads(
    (ROOT / f"tests/truth/deepspeed/{file}-0.19.6.json").read_text(encoding="utf-8"))["cases"].items()}

NOTED = 100_000
"""Bytes from which the probe notes an allocation."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    small.forget_outlines()
    yield
    small.forget_outlines()


def made(name: str, monkeypatch: pytest.MonkeyPatch) -> Program:
    case = TRUTH[name]
    monkeypatch.setattr(whole_hooks, "BUCKET", case["bucket"] or 500_000_000)
    own = case["adam"] == "deepspeed"
    small.forget_outlines()
    return small.program_of(
        "zero0", {"dp_replicate": case["ranks"]}, microbatches=case["steps"], precision={"compute": case["compute"]},
        model={"config": "llama-3.2-3b", "overrides": case["model"]}, options={"torch_adam": not own},
        optimizer={"name": "adamw", "implementation": "fused" if own else case["adam"]})


def moved(program: Program, category: str, phase: Phase | None = None) -> list[int]:
    """Signed bytes of each allocation and release of a category, in order."""
    names = list(program.tables.slots)
    rows = program.columns if phase is None else program.columns[program.phase == phase]
    return [size for op, _, slot, size, *_ in rows.tolist()
            if op in (Op.ALLOC, Op.FREE) and size and names[slot][1] == category]


def test_gradients_are_reduced_in_upstreams_buckets_behind_the_last_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, case in TRUTH.items():
        theirs = [size for rows in case["found"]["microbatches"] for _, size in rows]
        ours = small.calls(made(name, monkeypatch), "all_reduce")
        assert [size for *_, size in ours] == (theirs if case["ranks"] > 1 else []), name
        assert not any(case["found"]["microbatches"][:-1]), name


def test_buckets_are_copied_where_upstream_copies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of embedding and head are as long as a bucket of the embedding alone, which is not copied."""
    for name, case in TRUTH.items():
        fields = case["model"]
        alone = (4 if case["compute"] == "fp32" else 2) * fields["vocab_size"] * fields["hidden_size"]
        theirs = [size for size in case["found"]["copies"] if abs(size) != alone]
        ours = moved(made(name, monkeypatch), "reduce_scatter_input")
        assert [size for size in ours if abs(size) >= NOTED] == theirs, name


def test_what_lies_beside_parameters_has_upstreams_length(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, case in TRUTH.items():
        program, kept = made(name, monkeypatch), case["found"]["kept"]
        assert sum(moved(program, "main_param")) == 4 * kept["masters"], name
        assert sum(moved(program, "opt_state")) == 4 * kept["moments"], name
        assert bool(kept["flat"]) == (case["found"]["wrapper"] == "FP16_Optimizer"), name


def test_the_step_needs_what_upstream_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest point of the step beside what rests, and all that is released in it, gradients too."""
    for name, case in TRUTH.items():
        program, theirs = made(name, monkeypatch), case["found"]["memory"]
        names = list(program.tables.slots)
        ours = [size for op, _, slot, size, *_ in program.columns[program.phase == Phase.OPTIMIZER].tolist()
                if op in (Op.ALLOC, Op.FREE) and names[slot][1] in ("optim_temp", "unsharded_grad")]
        assert abs(_highest(ours) - _highest(theirs)) <= _small(case), name
        assert 0 <= sum(theirs) - sum(ours) <= _small(case), name


def _small(case: dict[str, Any]) -> int:
    """Bytes of the gradients of norms, in fp32, which the probe leaves out, and of roots of their moments."""
    return (2 * int(case["model"]["num_hidden_layers"]) + 1) * int(case["model"]["hidden_size"]) * (4 + 4)


def _highest(sizes: list[int]) -> int:
    held = most = 0
    for size in sizes:
        held += size
        most = max(most, held)
    return most
