"""Attention of Automodel's layers over context parallelism: as much work as on one rank, and messages both ways."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.models.blocks import Attention
from simcore.operators.automodel.dense import dense_attention, qwen3_moe_attention
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import attention
from simcore.operators.automodel.options import AutomodelOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Kernel, Node, Param, Section, Tape, Tensor

SEQ, HEADS, KV_HEADS, DIM, HIDDEN_SIZE = 256, 4, 2, 64, 256
BLOCK = Attention(HIDDEN_SIZE, HEADS, KV_HEADS, DIM)
KEYS = 2 * SEQ * KV_HEADS * DIM  # keys and values of all ranks, elements
TORCH, BY_TE = AutomodelOptions(sdpa=True), AutomodelOptions()
CASES = (("dense", dense_attention, TORCH, 0), ("packed", dense_attention, BY_TE, 1),
         ("experts by torch", qwen3_moe_attention, TORCH, 0), ("experts by TE", qwen3_moe_attention, BY_TE, 0),
         ("hybrid by torch", attention, TORCH, 0), ("hybrid by TE", attention, BY_TE, 0))


def _recorded(case: tuple[Any, ...], cp: int) -> tuple[tuple[Section, Section], dict[int, tuple[str, str, str]]]:
    """(forward, backward) of one attention on a rank, and the collectives by number."""
    _, operator, options, packs = case
    sizes = {"q_proj": HEADS, "k_proj": KV_HEADS, "v_proj": KV_HEADS}
    params = {f"at.{name}.weight": Param(name, (heads * DIM, HIDDEN_SIZE), "bf16", trainable=True)
              for name, heads in sizes.items()} | {
        "at.o_proj.weight": Param("o_proj", (HIDDEN_SIZE, HEADS * DIM), "bf16", trainable=True)}
    run = LayerWorkload(1, SEQ // cp, "bf16", params, cp=cp, sequences=packs, attended=SEQ * packs, options=options)
    comms: dict[tuple[str, str, str], int] = {}
    tape = Tape({}, comms)
    x = tape.external((1, SEQ // cp, HIDDEN_SIZE), "bf16", HIDDEN, -1)
    x.node = Node()
    out: Tensor | None = operator(Env(tape, run, options), x, BLOCK, "at")
    assert out is not None
    forward = tape.cut()
    tape.seed(out, tape.external(out.shape, "bf16", GRAD_HIDDEN, 1))
    node, out = out.node, None  # the graph lives on, the output does not
    assert node is not None
    tape.backward()
    backward = tape.cut()
    return (forward, backward), {number: comm for comm, number in comms.items()}


def _attention_flops(section: Section) -> int:
    return sum(row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] == Kernel.ATTENTION)


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_ranks_together_do_the_work_of_one_forward_and_back(case: tuple[Any, ...]) -> None:
    """Half of a square of 4 s^2 d FLOPs a head, 5/2 of it in backward, however many ranks share a sequence."""
    whole = 2 * SEQ * SEQ * DIM * HEADS
    for cp in (1, 2, 4, 8):
        (forward, backward), _ = _recorded(case, cp)
        assert (cp * _attention_flops(forward), cp * _attention_flops(backward)) == (whole, whole * 5 // 2), cp


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_keys_and_values_go_round_both_ways_and_their_gradients_back(case: tuple[Any, ...]) -> None:
    """Keys and values visit all other ranks in forward and in backward.

    Their gradients come home: torch's in fp32 after every step (_templated_ring_attention_backward), TE's in bf16
    after all but the first (AttnFuncWithCPAndKVP2P).
    """
    by_torch = case[0] == "dense" or "by torch" in case[0]
    for cp in (1, 2, 4):
        (forward, backward), comms = _recorded(case, cp)
        found = [{comms[row[2]]: sum(r[3] for r in section.rows if r[0] == Op.COLLECTIVE and r[2] == row[2])
                  for row in section.rows if row[0] == Op.COLLECTIVE} for section in (forward, backward)]
        keys, others = ("all_gather", "cp", "bf16"), (cp - 1) * KEYS // cp
        if cp == 1:
            assert found == [{}, {}]
        elif by_torch:
            assert found == [{keys: 2 * KEYS}, {keys: 2 * KEYS, ("send_recv", "cp", "fp32"): 4 * KEYS}], cp
        else:
            message = ("send_recv", "cp", "bf16")
            assert found == [{message: 2 * others}, {message: 2 * 2 * others}], cp
