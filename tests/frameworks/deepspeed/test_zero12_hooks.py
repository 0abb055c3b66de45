"""ZeRO-1 and ZeRO-2: the bucket, the rank's own part, the step."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import small
from simcore.frameworks.deepspeed.partitions import aligned, gradient_elements, touching
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.tile import OP, STREAM
from simcore.recording.tape import Op, Stream
from simcore.simulate import simulate

MODEL = {"config": "llama-3.2-3b", "overrides": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
                                                 "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64,
                                                 "vocab_size": 4000, "tie_word_embeddings": False}}
RANKS = 4
OPTIONS = {"reduce_bucket_size": 300_000}


def made(stage: str, *, options: dict[str, Any] | None = None, **given: Any) -> Program:
    return small.program_of(stage, {"dp_shard": RANKS}, model=MODEL, options=OPTIONS | (options or {}), **given)


def count() -> int:
    return small.plan_of("zero1", {"dp_shard": RANKS}, model=MODEL).graph.count()


def part_bytes() -> int:
    return -(-count() // (2 * RANKS)) * 2 * 2


def kept_bytes() -> int:
    """Averaged gradients of the rank with the most: all of every parameter that touches its part."""
    return max(2 * sum(touching(small.plan_of("zero2", {"dp_shard": RANKS}, model=MODEL), at)) for at in range(RANKS))


def test_averaged_gradients_are_those_of_whole_parameters() -> None:
    """One that lies in two parts is whole on both ranks, and one that no part touches is zeros of a part."""
    plans = [small.plan_of("zero2", {"dp_shard": RANKS}, rank=rank, model=MODEL) for rank in range(RANKS)]
    exact = [gradient_elements(plan, exact=True) for plan in plans]
    assert exact == [sum(touching(plan, rank)) for rank, plan in enumerate(plans)]
    assert {gradient_elements(plan) for plan in plans} == {max(exact)} == {kept_bytes() // 2}
    assert min(exact) >= part_bytes() // 2
    assert sum(exact) > count()
    many = [small.plan_of("zero2", {"dp_shard": 512}, rank=rank, model=MODEL) for rank in (0, 511)]
    assert min(gradient_elements(plan) for plan in many) >= 4000 * 256 > 80 * aligned(many[0]) // 512


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_no_bucket_is_larger_than_asked_unless_it_is_one_tensor(stage: str) -> None:
    sizes = [size for *_, size in small.calls(made(stage), "all_reduce")]
    assert sum(sizes) == 2 * count()
    assert {size for size in sizes if size > 2 * 300_000} == {2 * 4000 * 256}
    assert len(sizes) > 10


@pytest.mark.parametrize(("stage", "microbatches", "lives"), [("zero1", 1, 1), ("zero1", 3, 1), ("zero2", 1, 1),
                                                               ("zero2", 3, 3)])
def test_the_bucket_lives_from_the_first_gradient_to_the_reduction(stage: str, microbatches: int,
                                                                   lives: int) -> None:
    found = small.postings(made(stage, microbatches=microbatches), "ipg_bucket")
    assert [size for *_, size in found] == [2 * 300_000, -2 * 300_000] * lives
    assert {phase for _, phase, _ in found} == {"backward"}


def test_overlap_needs_a_second_bucket() -> None:
    found = small.postings(made("zero2", options={"overlap_comm": True}), "ipg_bucket")
    assert found[0][2] == 2 * 2 * 300_000


def test_a_further_microbatch_has_a_part_of_its_own() -> None:
    found = [size for *_, size in small.postings(made("zero2", microbatches=3), "grads_in_partition")]
    size = kept_bytes()
    assert found == [size, size, -size, size, -size, -size]


def test_zero1_keeps_whole_gradients_until_the_last_microbatch_is_over() -> None:
    whole = [size for _, phase, size in small.postings(made("zero1", microbatches=2), "weight.grad")]
    assert whole.count(2 * 4000 * 256) == 2  # embedding and head; the second microbatch's are added in place
    assert sum(whole) == 0
    assert [size for name in ("grads_in_partition",) for *_, size in small.postings(
        made("zero1", microbatches=2), name)] == [kept_bytes(), -kept_bytes()]


def test_zero2_drops_gradients_where_they_were_made() -> None:
    """Each lives until it is in the bucket, or sent; when backward is over none is left."""
    program = made("zero2")
    assert [name for name, category in program.tables.slots if category == "unsharded_grad"] == ["waiting_gradient"]
    waits = small.postings(program, "waiting_gradient")
    assert {phase for _, phase, _ in waits} == {"backward"}
    assert max(accumulate(size for *_, size in waits)) < 2 * count()
    assert sum(size for *_, size in waits) == 0


def test_the_step_copies_the_part_twice_and_drops_the_first() -> None:
    program, elements = made("zero2"), part_bytes() // 2
    rows = program.columns[program.phase == Phase.OPTIMIZER]
    names = {number: name for (name, _), number in program.tables.slots.items()}
    found = [(names[slot], size) for op, _, slot, size, *_ in rows.tolist()
             if op in (Op.ALLOC, Op.FREE) and names[slot] != "grad_norm"]
    assert found == [("flat_grad", 2 * elements), ("fp32_grad", 4 * elements), ("flat_grad", -2 * elements),
                     ("grads_in_partition", -kept_bytes()), ("fp32_grad", -4 * elements)]


def test_foreach_has_a_root_of_the_second_moments() -> None:
    program = made("zero2", optimizer={"implementation": "foreach"})
    assert [size for *_, size in small.postings(program, "sqrt_exp_avg_sq")] == [2 * part_bytes(), -2 * part_bytes()]


def test_infinities_are_looked_for_tensor_by_tensor() -> None:
    """fp32, absolute values and masks of the largest: more than its norm in fp64."""
    largest = 4000 * 256
    assert [size for *_, size in small.postings(made("zero2"), "grad_norm")] == [11 * largest, -11 * largest]


def test_the_flat_parameters_are_gathered_once_alignment_included() -> None:
    [(axis, phase, size)] = small.calls(made("zero2"), "all_gather")
    assert (axis, phase) == ("dp_shard", "optimizer")
    assert 0 <= size - 2 * count() < 2 * 2 * RANKS


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_the_gather_after_the_step_is_waited_for(stage: str) -> None:
    """By the stream that computes, and after the update (of ZeRO-3 small parameters alone)."""
    program = made(stage)
    rows = program.distinct[program.places]
    in_step = rows[(program.outline.phase == Phase.OPTIMIZER) & np.isin(rows[:, OP], (Op.COMPUTE, Op.COLLECTIVE))]
    *_, last = in_step.tolist()
    assert (last[OP], last[STREAM]) == (Op.COLLECTIVE, Stream.COMPUTE)
    assert (in_step[:, OP] == Op.COLLECTIVE).sum() == 1


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_its_time_is_exposed(stage: str) -> None:
    report = simulate(small.scenario(stage, {"dp_shard": RANKS}, model=MODEL, options=OPTIONS))
    assert report.time is not None
    gather, = (row for row in report.time.communication if row.collective == "all_gather")
    assert gather.exposed_s == pytest.approx(gather.alone_s)
    assert gather.hidden_s == 0
    assert report.time.optimizer_s > gather.alone_s
