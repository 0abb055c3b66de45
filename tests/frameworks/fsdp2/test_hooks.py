"""The hooks of each framework, and gradients of tensors that are in no unit."""

from __future__ import annotations

import pytest

import small
from simcore.frameworks.fsdp2.hooks import FSDP2_HOOKS
from simcore.frameworks.megatron.hooks import MEGATRON_HOOKS
from simcore.frameworks.registry import hooks_of


@pytest.mark.parametrize(("name", "hooks"), [("fsdp2", FSDP2_HOOKS), ("automodel", FSDP2_HOOKS),
                                            ("megatron", MEGATRON_HOOKS)])
def test_the_table_decides(name: str, hooks: object) -> None:
    assert hooks_of(small.prepared(name)[1]) is hooks


def test_ignored_experts_keep_their_gradients_until_zero_grad() -> None:
    """Two MoE layers, two tensors of 8 / 4 local experts, accumulated over microbatches in place."""
    program = small.program_of("fsdp2", {"dp_shard": 4, "ep": 4}, microbatches=2, options={"experts": "ignored"})
    name = "mixer.experts.up_proj.grad"
    assert ("mixer.experts.up_proj.grad", "ignored_grad") in program.tables.slots
    found = small.postings(program, name)
    made = sum(amount for _, phase, amount in found if phase == "backward")
    assert sum(amount for *_, amount in found) == 0
    assert made == -sum(amount for _, phase, amount in found if phase == "optimizer") > 0
    assert made in {2 * 2 * 128 * 256 * size for size in (2, 4)}
    assert small.calls(program, "reduce_scatter") == [
        call for call in small.calls(program, "reduce_scatter") if call[0] == "dp_shard_cp"]


def test_layers_below_the_first_adapter_have_no_backward_hooks() -> None:
    """Frozen embedding and norm: the root's parameters need no gradient, so nothing of it is reduced."""
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", method="lora", lora={"rank": 4})
    marks = small.marks(program)
    root = [m for m in marks if m.startswith("bwd:post_backward_begin:root")]
    assert root == ["bwd:post_backward_begin:root:grads=0"]
    assert sum(m.startswith("bwd:post_backward_begin:model.layers") and m.endswith("grads=1") for m in marks) == 4
