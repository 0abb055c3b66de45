"""A reference model's pass inside the loss: what it holds, frees and computes, and which jobs have none."""

from __future__ import annotations

from typing import Any

import numpy as np

import small
from simcore.errors import RankscopeError
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.memory.ledger import running
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import AMOUNT, OP, SLOT
from simcore.recording.tape import Kernel, Op

LORA = {"method": "lora", "lora": {"target_modules": ["q_proj", "v_proj"]}}
DPO: dict[str, Any] = LORA | {"loss": "preference_rows", "micro_batch_size": 2}


def program(**training: Any) -> Program:
    job, table = prepare(small.scenario("ddp", model="llama-tiny", **training))
    plan = place(job.graph, job.mesh, table, 0)
    return lower(plan, Workload(2, 64, 2 << 16), actions(table.schedule, 0, 2), hooks_of(table))


def flops(found: Program) -> int:
    """FLOPs of products before the backward of the first microbatch."""
    rows = found.columns[:int(np.argmax(found.phase == Phase.BACKWARD))]
    return int(rows[(rows[:, OP] == Op.COMPUTE) & (rows[:, SLOT] == Kernel.GEMM)][:, AMOUNT].sum())


def test_the_reference_computes_the_model_without_its_adapters() -> None:
    """Before backward are the policy's products, with adapters, and as many again as the model has without."""
    assert flops(program(**DPO)) == flops(program(**LORA)) + flops(program())


def test_a_step_ends_with_what_it_began_with() -> None:
    """But for gradients, which are there from the second step on; checkpoints are off in the reference's pass."""
    wrong = []
    for recompute in ("none", "full"):
        ends = [running(program(recompute=recompute, **given))[-1] for given in (DPO, LORA)]
        if ends[0] != ends[1]:
            wrong.append((recompute, ends))
    assert not wrong


def test_what_is_not_modelled_beside_pairs_is_refused_by_name() -> None:
    wrong = []
    for training, told in (({"method": "full"}, "in full, beside a second model"),
                           ({"micro_batch_size": 3}, "micro_batch_size: expected an even number"),
                           ({"lengths": "packed"}, "packed or drawn lengths"),
                           ({"offload": {"activations": "host"}, "recompute": "full"}, "activations on the host")):
        try:
            program(**DPO | training)
            wrong.append((training, "runs"))
        except RankscopeError as error:
            wrong += [(training, str(error))] if told not in str(error) else []
    assert not wrong
