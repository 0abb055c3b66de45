"""Log-probabilities that are fused with the head against what NeMo RL's own function allocates and frees."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from checkout import ROOT
from operators.megatron.kinds import run_of
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.models.blocks import Head, LayerKind, Loss
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.layer import RecordedLayer
from simcore.recording.tape import Op, Section
from simcore.simulate import simulate

TRUTH: list[dict[str, Any]] = json.loads((ROOT / "tests/truth/losses/fused-logprobs-nemo-rl-7ea279ab.json").read_text(
    encoding="utf-8"))["cases"]


def tapes(case: dict[str, Any], comms: dict[tuple[str, str, str], int], **changed: Any) -> list[RecordedLayer]:
    """Recordings of head and loss of one case."""
    slots: dict[tuple[str, str], int] = {}
    options = MegatronOptions(logprob_chunk_size=case["chunk"], gradient_accumulation_fusion=False)
    blocks = (("head", Head(case["vocab"], case["hidden"])), ("loss", Loss(case["vocab"])))
    kinds = [LayerKind(name, "qwen3", case["hidden"], block=block) for name, block in blocks]
    return [record(kind, replace(run_of(kind), batch=case["batch"], seq=case["seq"], options=options,
                                 loss="fused_log_probs", **changed), slots, comms) for kind in kinds]


def events(least: int, *sections: Section) -> list[int]:
    return [row[3] for row in chain(*(section.rows for section in sections))
            if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= least]


@pytest.mark.parametrize("case", TRUTH, ids=lambda case: f"{case['batch']}x{case['seq']}-{case['chunk']}")
def test_chunks_of_logits_and_the_weights_gradient_are_made_and_freed_as_upstream_does(case: dict[str, Any]) -> None:
    """The first of upstream's storages, and the last that dies, is the weight itself, which was there."""
    head, _ = tapes(case, {})
    assert events(case["least"], head.forward) == case["forward"][1:-1]
    upstream, ours = case["backward"][1:-1], events(case["least"], head.backward)
    ended = max(number for number, size in enumerate(upstream) if size > 0) + 2  # variables die together afterwards
    assert ours[:ended] == upstream[:ended]
    assert sorted(ours) == sorted(upstream)


def test_hidden_states_that_tp_splits_are_gathered_and_their_gradients_are_summed() -> None:
    comms: dict[tuple[str, str, str], int] = {}
    head, _ = tapes(TRUTH[0], comms, tp=2, sequence_parallel=True)
    kinds = {number: name for name, number in comms.items()}
    sent = [[(*kinds[row[2]], row[3]) for row in section.rows if row[0] == Op.COLLECTIVE]
            for section in (head.forward, head.backward)]
    case = TRUTH[0]
    whole = case["batch"] * case["seq"] * case["hidden"]
    assert sent[0][0] == ("all_gather", "tp", "bf16", 2 * whole)
    assert sent[0].count(("all_reduce", "tp", "fp32", 4 * 4)) == 2 * 3
    assert sent[1][0] == ("all_gather", "tp", "bf16", 2 * whole)
    assert sent[1][-1] == ("reduce_scatter", "tp", "fp32", 4 * whole)


@pytest.mark.parametrize(("changed", "told"), [
    ({"training": {"seq_len": 256, "loss": "fused_log_probs"}}, "without training.logprob_chunk_size"),
    ({"mesh": {"cp": 2}}, "context parallelism with log-probabilities that are fused"),
    ({"mesh": {"dp_shard": 2}}, "overlap_param_gather"),
    ({"mesh": {"tp": 2}, "training": {"seq_len": 256, "loss": "fused_log_probs", "logprob_chunk_size": 64,
                                      "sequence_parallel": False}}, "tp without sequence_parallel"),
    ({"framework": "fsdp2", "training": {"seq_len": 256, "loss": "fused_log_probs"}}, "fused_log_probs under fsdp2"),
])
def test_what_cannot_be_fused_is_refused(changed: dict[str, Any], told: str) -> None:
    given = {"name": "f", "framework": "megatron", "topology": "dgx-h100", "model": "qwen2.5-1.5b",
             "training": {"seq_len": 256, "loss": "fused_log_probs", "logprob_chunk_size": 64}} | changed
    report = simulate(parse_scenario(parse_document(json.dumps(given), "f.json")), timed=False)
    assert told in report.problems[0].message


def test_no_logits_of_all_tokens_are_there() -> None:
    given = {"name": "f", "framework": "megatron", "topology": "dgx-h100", "mesh": {"tp": 2},
             "model": {"config": "qwen2.5-1.5b", "overrides": {"num_hidden_layers": 2}}}
    fused, whole = (simulate(parse_scenario(parse_document(json.dumps(given | {"training": training}), "f.json")),
                             timed=False).ranks[0].peak
                    for training in ({"seq_len": 8192, "loss": "fused_log_probs", "logprob_chunk_size": 128},
                                     {"seq_len": 8192}))
    assert fused is not None
    assert whole is not None
    assert whole.allocated_bytes - fused.allocated_bytes > 2 * 8192 * 151936 // 2
