"""Norms of Automodel's backends against the operator itself: tests/truth/probe_automodel_norm.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import InputError, NotYet
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import norm
from simcore.operators.automodel.options import RELEASE_0_7_0, AutomodelOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Tape

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-norm-0.7.0-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))["cases"]
DTYPES = {"bfloat16": "bf16", "float32": "fp32"}


def events(case: dict[str, Any]) -> list[int]:
    """Births and deaths of a norm whose output lives on, without the tensors that it is given."""
    dtype = case.get("dtype", "bfloat16")
    weight = Param("norm.weight", (case["shape"][-1],), DTYPES[case.get("weight", dtype)], trainable=False)
    options = RELEASE_0_7_0 if case["norm"] == "torch_fp32" else AutomodelOptions()
    run = LayerWorkload(1, 1, "bf16", {"norm.weight": weight}, options=options)
    tape = Tape({}, {})
    x = tape.empty(tuple(case["shape"]), DTYPES[dtype], "x")
    start = len(tape.rows)
    out = norm(Env(tape, run, options), x, "norm")
    assert out.shape == x.shape
    return [row[3] for row in tape.rows[start:] if row[0] in (Op.ALLOC, Op.FREE)]


def test_a_norm_makes_what_automodel_s_makes() -> None:
    assert len(CASES) == 5
    for name, row in CASES.items():
        assert events(row["case"]) == row["forward"], name


def test_backward_is_one_kernel_beside_rows() -> None:
    """A compiler sees into it: what it makes are both gradients, and vectors."""
    for name, row in CASES.items():
        large = [change for change in row.get("backward", []) if abs(change) > 20000]
        assert len(large) <= 1, name


def test_other_norms_are_one_kernel_that_keeps_roots() -> None:
    given = {"model": "llama-tiny"}
    wide, *rest = (small.prepared("automodel", {"dp_shard": 2}, options={"backend.rms_norm": name}, **given)[1].options
                   for name in ("torch_fp32", "te", "torch", "quack"))
    told = [(found.wide_norms, found.keeps_norm_rstd) for found in (wide, *rest)]  # type: ignore[attr-defined]
    assert told == [(True, False), *[(False, True)] * 3]


@pytest.mark.parametrize(("given", "says"), [
    ({"model": "qwen3-0.6b"}, "whose norms are its own"),
    ({"model": "llama-tiny", "implementation": "hf"}, "in transformers' layers"),
    ({"model": "nemotron-3-tiny", "version": "0.4.0"}, "before 0.7.0")])
def test_a_norm_that_changes_nothing_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"backend.rms_norm: changes nothing {says}|{says}"):
        small.prepared("automodel", {"dp_shard": 2}, options={"backend.rms_norm": "te"}, **given)


def test_compiled_layers_have_been_measured_with_the_default() -> None:
    with pytest.raises(NotYet, match=r"with backend\.rms_norm: te"):
        small.prepared("automodel", {"dp_shard": 2}, model="llama-tiny",
                       options={"backend.rms_norm": "te", "enable_compile": True})
