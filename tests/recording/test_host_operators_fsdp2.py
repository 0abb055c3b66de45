"""Host time of Python's hooks around a unit of FSDP2, as measured."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import small
from checkout import ROOT
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.host_operators import FSDP2_BACKWARD_GATHER, FSDP2_FORWARD_GATHER, FSDP2_REDUCE, FSDP2_RELEASE
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.tape import Kernel, Op

HOST = ROOT / "tests/truth" / "host"
TIMED = json.loads((HOST / "fully-shard-torch-2.13.json").read_text(encoding="utf-8"))["operators"]
PYTHON_US, LAUNCH_US = 16, 5
EXPERTS = {"config": "nemotron-3-tiny", "overrides": {"num_hidden_layers": 2, "hybrid_override_pattern": "ME"}}


def told(num: int) -> dict[str, int]:
    return {"forward": FSDP2_FORWARD_GATHER.operators(num), "backward": FSDP2_BACKWARD_GATHER.operators(num),
            "release": FSDP2_RELEASE.operators(num), "reduce": FSDP2_REDUCE.operators(num)}


def counted(program: Program, kernel: Kernel) -> dict[str, list[int]]:
    """Operators of each row of the flow that says how many, by pass."""
    rows, phases = np.array(program.columns.tolist()), program.outline.phase
    found = (rows[:, 0] == Op.COMPUTE) & (rows[:, 2] == kernel) & (shapes_in(rows[:, 4]) > 1)
    return {phase.name.lower(): shapes_in(rows[found & (phases == phase), 4]).tolist() for phase in Phase}


def copies(**mesh: int) -> dict[str, list[int]]:
    return counted(small.program_of("fsdp2", mesh), Kernel.COPY)


def hooks(**given: Any) -> list[int]:
    """Operators of the hooks after each unit's backward."""
    return counted(small.program_of("fsdp2", {"dp_shard": 2}, **given), Kernel.ELEMENTWISE)["backward"]


@pytest.mark.parametrize("num", [int(key) for key in TIMED])
def test_the_host_was_timed(num: int) -> None:
    """Python, with a launch of each copy: two of a gathering, one of a reduction."""
    launches = {"forward": 2, "backward": 2, "release": 0, "reduce": 1}
    for what, operators in told(num).items():
        timed = (TIMED[str(num)][what] * PYTHON_US + launches[what] * LAUNCH_US) / (PYTHON_US + LAUNCH_US)
        assert operators == pytest.approx(timed, rel=0.25, abs=1)


def test_each_parameter_takes_its_time() -> None:
    for few, many in pairwise(told(num) for num in range(1, 300, 5)):
        assert all(few[what] < many[what] for what in few)


def test_a_unit_is_gathered_in_both_passes_and_reduced_in_one() -> None:
    found = copies(dp_shard=2)
    units = len(found["forward"])
    assert len(found["backward"]) == units - 1 + units, "the root stays whole"
    assert sum(found["forward"]) > sum(found["backward"]) // 2


def test_microbatches_that_only_sum_run_their_hooks_all_the_same() -> None:
    once = hooks(microbatches=1, model=EXPERTS)
    assert hooks(microbatches=3, model=EXPERTS) == 3 * once


def test_frozen_parameters_are_released_and_not_reduced() -> None:
    """The hooks are longer for the adapters' sake, the reductions shorter."""
    full, lora = (counted(small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", method=method), Kernel.COPY)
                  for method in ("full", "lora"))
    assert sum(lora["backward"]) < sum(full["backward"]) + sum(lora["forward"]) - sum(full["forward"])


def parameters(implementation: str, **options: bool) -> int:
    """Number of parameters of the largest unit, from the operators of its all-gather."""
    model = "mixtral-8x7b" if implementation == "kempnerforge" else small.TINY
    program = small.program_of("fsdp2", {"dp_shard": 2}, implementation=implementation, options=dict(options),
                               model=model)
    most = max(counted(program, Kernel.COPY)["forward"])
    return next(num for num in range(1, 1000) if FSDP2_FORWARD_GATHER.operators(num) >= most)


def test_experts_that_are_tensors_of_their_own_are_parameters_of_their_own() -> None:
    """One tensor of all, of transformers and of KempnerForge's packed ones; else one an expert."""
    assert parameters("hub") > 2 * parameters("hf")
    assert parameters("kempnerforge") - parameters("kempnerforge", packed_experts=True) == pytest.approx(21, abs=1)
