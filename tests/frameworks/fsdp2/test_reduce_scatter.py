"""Gradients of FSDP2: reduced once or every microbatch, whole in between, gone after the step."""

from __future__ import annotations

import numpy as np
import pytest

import small
from simcore.program.outline import Phase
from simcore.recording.tape import Op
from simcore.simulate import place

LAYER = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688 + 2 * 256
ROOT = 2 * 1000 * 256 + 256
WHOLE = 4 * LAYER + ROOT
"""Elements of llama-tiny."""


@pytest.mark.parametrize(("sync", "times"), [("last", 1), ("every", 3)])
def test_reductions_of_three_microbatches(sync: str, times: int) -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", microbatches=3,
                               options={"sync_gradients": sync})
    payloads = [size for _, _, size in small.calls(program, "reduce_scatter")]
    assert sorted(payloads) == sorted([2 * LAYER] * 4 * times + [2 * ROOT] * times)  # in bf16, the compute dtype


def test_replicas_reduce_what_is_left_of_the_shards() -> None:
    program = small.program_of("fsdp2", {"dp_replicate": 2, "dp_shard": 2}, model="llama-tiny")
    scattered = [size for _, _, size in small.calls(program, "reduce_scatter")]
    assert [(axis, size) for axis, _, size in small.calls(program, "all_reduce")] == [
        ("dp_replicate", size // 2) for size in scattered]


def test_sharded_gradients_live_until_zero_grad() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny")
    held = small.postings(program, "sharded_grad")
    assert sum(amount for _, phase, amount in held if phase == "backward") == 4 * WHOLE // 2
    assert sum(amount for _, phase, amount in held if phase == "optimizer") == -4 * WHOLE // 2


def test_unsynchronised_gradients_stay_whole_between_microbatches() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", microbatches=2,
                               precision={"grad_reduce": "fp32"})
    made = [amount for *_, amount in small.postings(program, "accumulated_grad")]
    assert sum(amount for amount in made if amount > 0) == 4 * WHOLE
    assert sum(made) == 0


def test_one_reduce_scatter_input_gives_way_to_the_next() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny")
    signs = [amount > 0 for *_, amount in small.postings(program, "reduce_scatter_input")]
    assert signs == [True, False] * 5


def test_frozen_units_reduce_nothing() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", method="lora", lora={"rank": 4})
    assert len(small.calls(program, "reduce_scatter")) == 4


def test_padding_of_gradients_is_that_of_adapters_alone() -> None:
    """Over 3 ranks rank 2 has two rows less of 256 and 688, one less of 128, and of 4 rows none of two."""
    report = place(small.scenario("fsdp2", {"dp_shard": 3}, model="llama-tiny", method="lora",
                                  lora={"rank": 4, "target_modules": ["q_proj"]}), rank=2)
    (rank,) = report.ranks
    assert rank.grads_padding_bytes == 4 * 4 * (2 * 256 + 2 * 4)
    assert rank.padding_bytes > 8 * rank.grads_padding_bytes


@pytest.mark.parametrize(("shards", "tied", "last"), [(1, False, 0), (2, False, 2 * 1000 * 256), (2, True, 2 * 256)])
def test_only_more_than_one_shard_holds_a_last_gradient_while_it_is_reduced(shards: int, tied: bool, last: int) -> None:
    """The head's, in bf16, is there when the root's reduced gradients are made (torch 2.13: a loop's own variable).

    With a tied head the norm's, the root's last parameter, although the table's gradient is made last.
    """
    program = small.program_of("fsdp2", {"dp_shard": shards}, precision={"grad_reduce": "bf16"}, model={
        "config": "llama-tiny", "overrides": {"tie_word_embeddings": tied}})
    owners = program.outline.owners
    held, seen = 0, []
    for op, layer, slot, amount, *_ in program.columns.tolist():
        if op <= Op.FREE and owners[slot][1] == "unsharded_grad":
            held += amount
        if op == Op.ALLOC and layer == 0 and owners[slot][0] == "reduce_scatter_output":
            seen.append(held)
    assert seen == [last]


@pytest.mark.parametrize(("finish", "waiting"), [("every", 0), ("last", 2 * ROOT)])
def test_the_last_backward_alone_waits_for_what_is_reduced(finish: str, waiting: int) -> None:
    """torch 2.13 `_fsdp_state.py`, _root_post_backward_final_callback: the root's input is kept for a microbatch."""
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", microbatches=2,
                               options={"sync_gradients": "every", "set_is_last_backward": finish})
    begins = np.flatnonzero((program.microbatch == 1) & (program.phase == Phase.FORWARD))[0]
    names = [name for name, _ in program.outline.owners]
    rows = program.columns[:begins]
    held = rows[(rows[:, 0] <= Op.FREE) & (rows[:, 2] == names.index("reduce_scatter_input"))]
    assert held[:, 3].sum() == waiting


HOST = {"params": "host", "gradients": "host", "optimizer": "host"}


@pytest.mark.parametrize("reduce", ["fp32", "bf16"])
def test_gradients_that_go_to_the_host_leave_nothing_behind(reduce: str) -> None:
    """Reduced, cast to fp32 where that is another format, copied out, gone."""
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", offload=HOST, microbatches=2,
                               options={"sync_gradients": "every"}, precision={"grad_reduce": reduce})
    size = {"fp32": 4, "bf16": 2}[reduce]
    for name, per_element in (("reduce_scatter_output", size), ("sharded_grad", 4 * (size < 4))):
        posted = small.postings(program, name)
        assert sum(amount for *_, amount in posted if amount > 0) == 2 * per_element * WHOLE // 2
        assert {phase for _, phase, amount in posted if amount < 0} <= {"backward"}
        assert sum(amount for *_, amount in posted) == 0


def test_an_all_reduced_buffer_is_held_on_the_way_to_the_host_too() -> None:
    program = small.program_of("fsdp2", {"dp_replicate": 2, "dp_shard": 2}, model="llama-tiny", offload=HOST,
                               precision={"grad_reduce": "fp32"})
    assert sum(amount for *_, amount in small.postings(program, "reduce_scatter_output")) == 0
    assert small.postings(program, "sharded_grad") == []
