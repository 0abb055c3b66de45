"""Lowering: passes in the schedule's order, equal layers equal rows, borders between stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.models.blocks import Head
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, AUX, LAYER, OP, STREAM
from simcore.recording.tape import Op, Stream

HIDDEN = 64 * 256 * 2
"""Bytes of hidden states between stages."""


def passes(program: Program) -> list[str]:
    """F0, B0, ...: forward and backward of microbatches, in order."""
    order = {Phase.FORWARD: "F", Phase.LOSS: "F", Phase.BACKWARD: "B", Phase.RECOMPUTE: "B"}
    names = [f"{order[Phase(phase)]}{microbatch}" for phase, microbatch in
             zip(program.phase.tolist(), program.microbatch.tolist(), strict=True) if Phase(phase) in order]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


def test_passes_follow_the_schedule() -> None:
    assert passes(small.program_of("fsdp2", microbatches=2)) == ["F0", "B0", "F1", "B1"]
    assert passes(small.program_of("automodel", {"pp": 2}, microbatches=3)) == ["F0", "F1", "B0", "F2", "B1", "B2"]
    assert passes(small.program_of("automodel", {"pp": 2}, rank=1, microbatches=2)) == ["F0", "B0", "F1", "B1"]


def test_a_step_begins_with_building_and_ends_with_the_optimizer() -> None:
    phases = small.program_of("megatron").phase
    assert (phases[0], phases[-1]) == (Phase.BUILD, Phase.OPTIMIZER)
    assert (np.diff((phases == Phase.OPTIMIZER).astype(int)) >= 0).all()


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_equal_layers_do_equal_work(name: str) -> None:
    """Compares layers 2 and 3 of 4 Llama layers: the first has the stem's output, the last may keep weights."""
    program = small.program_of(name, model="llama-tiny")
    kernels = program.columns[program.columns[:, OP] == Op.COMPUTE]
    second, third = (kernels[kernels[:, LAYER] == layer][:, 2:].tolist() for layer in (2, 3))
    assert second == third != []


@pytest.mark.parametrize("name", ["automodel", "megatron"])
def test_stages_pass_hidden_states_up_and_gradients_down(name: str) -> None:
    for stage in range(5):
        program = small.program_of(name, {"pp": 5}, rank=stage, microbatches=6)
        rows = program.columns[program.columns[:, OP] == Op.COLLECTIVE]
        sent, received = (rows[rows[:, STREAM] == stream] for stream in (Stream.SEND, Stream.RECEIVE))
        assert len(sent) == len(received) == 6 * ((stage > 0) + (stage < 4))
        assert set(sent[:, 3].tolist()) == set(received[:, 3].tolist()) == {HIDDEN}


def test_both_sides_of_a_border_name_a_message_alike() -> None:
    def messages(stage: int, stream: Stream) -> list[tuple[int, ...]]:
        program = small.program_of("automodel", {"pp": 2}, rank=stage, microbatches=3)
        chosen = (program.columns[:, OP] == Op.COLLECTIVE) & (program.columns[:, STREAM] == stream)
        rows, microbatches = program.columns[chosen], program.microbatch[chosen]
        return [(int(row[LAYER]), int(row[5]), int(m)) for row, m in zip(rows, microbatches, strict=True)]

    assert messages(0, Stream.SEND) == messages(1, Stream.RECEIVE)
    assert messages(1, Stream.SEND) == messages(0, Stream.RECEIVE)


def test_tokens_and_labels_live_from_forward_to_backward() -> None:
    found = small.postings(small.program_of("fsdp2", microbatches=2), "input_ids_and_labels")
    assert found == [(0, "forward", 1024), (0, "backward", -1024)] * 2  # two of 64 int64


def test_megatron_keeps_what_it_received_last() -> None:
    """The input until the next forward is over, its gradient until the next; at rest the last stage holds a pair."""
    program = small.program_of("megatron", {"pp": 5}, rank=4, microbatches=3)
    first = program.columns[program.columns[:, OP] == Op.COLLECTIVE][0, LAYER] + 1
    hidden = [x for x in small.postings(program, "hidden_states") if x[0] == first - 1]
    grads = [x for x in small.postings(program, "grad_hidden_states") if x[0] == first]
    step = ["forward", "forward", "backward", "backward"]
    assert [phase.replace("loss", "forward") for _, phase, _ in hidden] == ["build", *step * 3]
    assert sum(size for *_, size in hidden) == sum(size for *_, size in grads) == HIDDEN
    assert max(np.cumsum([size for *_, size in grads])) == 2 * HIDDEN
    other = small.program_of("automodel", {"pp": 5}, rank=4, microbatches=6)
    assert sum(size for layer, _, size in small.postings(other, "grad_hidden_states") if layer == first) == 0


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_deferred_heads_wait_for_the_end_of_the_step(limit: int) -> None:
    """The gradient of logits and the head's input, and what the input's graph ends in: what the stage received."""
    options = {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": limit}
    program = small.program_of("megatron", {"pp": 5}, rank=4, microbatches=3, options=options)
    count = min(limit, 3)
    vocab = next(kind.block.vocab for kind in small.plan_of("megatron").graph.kinds if isinstance(kind.block, Head))
    size = 64 * (256 + vocab) * 2
    assert [size for *_, size in small.postings(program, "deferred_head")] == [size] * count + [-size] * count
    first = program.columns[program.columns[:, OP] == Op.COLLECTIVE][0, LAYER] + 1
    for name, layer in (("hidden_states", first - 1), ("grad_hidden_states", first)):
        held = [size for at, _, size in small.postings(program, name) if at == layer]
        assert sum(held) == HIDDEN
        assert max(np.cumsum(held)) == 3 * HIDDEN
    other = small.program_of("megatron", {"pp": 5}, rank=0, microbatches=3, options=options)
    assert not small.postings(other, "deferred_head")


def test_programs_do_not_share_their_tables() -> None:
    one, two = (small.program_of("fsdp2", {"dp_shard": shards}) for shards in (2, 4))
    assert one.tables is not two.tables


# ---- virtual stages --------------------------------------------------------------------------------------------------
EIGHT = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 8}}


def chunked(stage: int, microbatches: int = 4, **given: Any) -> Program:
    """Two stages of two chunks, of two layers each."""
    return small.program_of("megatron", {"pp": 2}, rank=stage, microbatches=microbatches, model=EIGHT,
                            pipeline={"virtual_stages": 2}, **given)


def messages(program: Program, stream: Stream) -> list[tuple[int, int, int, int]]:
    """(layer, handle, microbatch, bytes) of what is sent, or received."""
    chosen = (program.columns[:, OP] == Op.COLLECTIVE) & (program.columns[:, STREAM] == stream)
    return [(int(row[LAYER]), int(row[AUX]), int(microbatch), int(row[AMOUNT])) for row, microbatch in
            zip(program.columns[chosen], program.microbatch[chosen], strict=True)]


def test_a_pass_walks_the_layers_of_its_chunk() -> None:
    """Layers 1-2 and 5-6 of eight, after the embedding; 3-4 and 7-8, norm, head and loss."""
    for stage, chunks in enumerate([[[0, 1, 2], [5, 6]], [[3, 4], [7, 8, 9, 10, 11]]]):
        program = chunked(stage)
        work = program.columns[:, OP] == Op.COMPUTE
        for phases in ((Phase.FORWARD, Phase.LOSS), (Phase.BACKWARD,)):
            for microbatch in range(4):
                mine = work & np.isin(program.phase, phases) & (program.microbatch == microbatch)
                layers = list(dict.fromkeys(program.columns[mine, LAYER].tolist()))
                assert sorted(layers) == sorted(layer for chunk in chunks for layer in chunk)
                where = [next(i for i, chunk in enumerate(chunks) if layer in chunk) for layer in layers]
                assert where == sorted(where, reverse=phases == (Phase.BACKWARD,))


@pytest.mark.parametrize("options", [{}, {"microbatch_group_size_per_vp_stage": 3}])
def test_all_that_is_sent_between_chunks_is_received(options: dict[str, Any]) -> None:
    """Three borders: 0 to 1, the last stage back to the first, 0 to 1 again; up and down, six microbatches."""
    stages = [chunked(stage, 6, options=options) for stage in range(2)]
    sent, received = ([message for program in stages for message in messages(program, stream)]
                      for stream in (Stream.SEND, Stream.RECEIVE))
    assert sorted(sent) == sorted(received)
    assert len(sent) == len(set(sent)) == 2 * 3 * 6
    assert {layer for layer, handle, *_ in sent if handle == 8} == {2, 4, 6}


def test_what_a_warm_stage_sent_lives_through_a_backward_pass() -> None:
    """`-1.4` of the truth: freed at once in warm-up, else after the backward pass that follows."""
    hidden = small.postings(chunked(0), "hidden_states")
    left = {layer: sum(amount for at, _, amount in hidden if at == layer) for layer, *_ in hidden}
    assert {layer: size for layer, size in left.items() if size} == {4: 64 * 256 * 2}, "the second chunk's newest input"
    freed = [phase for layer, phase, amount in hidden if layer == 6 and amount < 0]
    assert freed == ["forward", "forward", "backward", "backward"]


def test_no_owner_of_a_chunk_is_in_debt() -> None:
    for stage in range(2):
        chunked(stage).check()
        chunked(stage, 6, options={"microbatch_group_size_per_vp_stage": 3}, method="lora").check()
