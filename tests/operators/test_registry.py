"""Implementations by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.operators.implementation import Implementation
from simcore.operators.registry import IMPLEMENTATIONS, implementation_of
from simcore.placement.plan import place
from simcore.program.record_layers import Workload, keys_of, run_of
from simcore.recording.tape import Node, Param, Tape, Tensor


def test_every_package_with_an_implementation_has_a_name() -> None:
    folders = (ROOT / "simcore/operators").glob("*/implementation.py")
    assert sorted(path.parent.name for path in folders) == sorted(IMPLEMENTATIONS)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_an_implementation_fills_in_its_record(name: str) -> None:
    found = implementation_of(name)
    assert isinstance(found, Implementation)
    assert found.standing([]) is not None


NEVER_LEARN = tuple(f"{module}.out_proj.lora_{matrix}.weight" for module in ("mixer", "mamba") for matrix in "AB")
"""Automodel's adapter of a linear whose weight Mamba's kernel reads."""
NAMED = {"target_modules": ["*_proj", "linear_*"]}
LEAVES = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj",
                             "w1", "w2", "w3"]}


@pytest.mark.parametrize(("framework", "implementation", "lora"), [
    ("megatron", "auto", {}), ("megatron", "auto", NAMED), ("automodel", "auto", {}), ("automodel", "auto", NAMED),
    ("ddp", "hf", {}), ("ddp", "hf", LEAVES), ("ddp", "hf4", LEAVES), ("ddp", "hub", LEAVES)])
def test_every_trained_parameter_is_in_a_pass(framework: str, implementation: str, lora: dict[str, list[str]],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained without a node that makes its gradient, in any preset; {} is full fine-tuning.

    Layers whose parameters have the same names, whatever the expert's number, are recorded once: sizes change no pass.
    Models with a tower, which ask for images, are left out (`hf/test_vision.py`).
    """
    trained, node, seen = set[str](), Tape.node, set[frozenset[str]]()

    def noting(tape: Tape, inputs: Sequence[Tensor | Param | None], *given: Any, **named: Any) -> Node | None:
        made = node(tape, inputs, *given, **named)
        trained.update(one.name for one in inputs if made is not None and isinstance(one, Param) and one.trainable)
        return made

    monkeypatch.setattr(Tape, "node", noting)
    served = 0
    for preset in sorted(path.stem for path in (ROOT / "simcore/models/presets").glob("*.json")
                         if "vision_config" not in path.read_text(encoding="utf-8")):
        with suppress(NotYet, IllegalLayout):
            method: dict[str, Any] = {"method": "lora", "lora": lora} if lora else {}
            job, table = small.prepared(framework, model=preset, implementation=implementation, **method)
            plan = place(job.graph, job.mesh, table, 0)
            for key in keys_of(plan).values():
                run = run_of(plan, key, Workload(1, 64, 2 << 16))
                served += 1
                names = frozenset(re.sub(r"\d+", "N", name) for name in run.params)
                if names in seen:
                    continue
                seen.add(names)
                trained.clear()
                implementation_of(plan.graph.implementation).record(plan.graph.kinds[key[0]], run, {}, {})
                idle = {name for name, one in run.params.items() if one.trainable} - trained - {*NEVER_LEARN}
                assert not idle, (preset, plan.graph.kinds[key[0]].name)
    assert served > 5
