"""Document E: Llama-3.2-3B-Instruct with DeepSpeed on cards from 10 to 141 GB, M59 to M64."""

from __future__ import annotations

from collections.abc import Sequence

from claims.asked import GB, at_rest_gb, num_params, peak_gb, ran, scenario, verdict
from claims.claim import BY_ITS_RULE, REFUTED, Claim, Figure
from simcore.results.report import Report

__all__ = ["CLAIMS"]

LLAMA = "llama-3.2-3b"


def _formats() -> Sequence[Figure]:
    count = sum(num_params(LLAMA).values())
    half = ran(scenario("zero1", {"dp_shard": 1}, model=LLAMA, precision={"compute": "fp16"}))
    full = ran(scenario("ddp", {"dp_replicate": 1}, model=LLAMA, precision={"params": "fp32", "compute": "fp32"}))
    return [Figure("parameters", 3.0, count / 1e9, rule=3.0, unit="billion", within=0.08),
            Figure("weights in fp32", 12.0, at_rest_gb(full, "params_bytes"), rule=12.0, unit="GB", within=0.08),
            Figure("Adam in fp32", 24.0, at_rest_gb(full, "optimizer_bytes"), rule=24.0, unit="GB", within=0.08),
            Figure("weights in fp16", 6.0, at_rest_gb(half, "params_bytes"), rule=6.0, unit="GB", within=0.08),
            Figure("Adam in fp16", 12.0, at_rest_gb(half, "optimizer_bytes"), rule=12.0, unit="GB", within=0.08)]


def _stages() -> Sequence[Figure]:
    """States of a GPU before activations; the published cells hold activations too."""
    published = {1: (20.0, 16.0), 2: (14.0, 10.0), 3: (10.0, 6.0)}
    return [Figure(f"stage {stage} on {gpus}", told,
                   at_rest_gb(ran(scenario(f"zero{stage}", {"dp_shard": gpus}, model=LLAMA, topology="dgx-a100",
                                           precision={"compute": "fp16"}))), unit="GB")
            for stage, cells in published.items() for gpus, told in zip((2, 4), cells, strict=True)]


def _batch() -> Sequence[Figure]:
    asked = scenario("zero2", {"dp_shard": 2}, model=LLAMA, micro_batch_size=4, global_batch_size=16)
    whole = asked.num_microbatches * 4 * 2
    cpu = ran(scenario("zero2", {"dp_shard": 2}, model=LLAMA, offload={"optimizer": "host"}))
    moved = at_rest_gb(cpu, "optimizer_bytes") * GB
    return [Figure("4 a device, 2 GPUs, accumulated twice", 16.0, float(whole)),
            Figure("offload to the CPU is for stage 3 alone", "yes", "no" if moved == 0 else "yes")]


def _two(stage: int, topology: str, sequences: int) -> Report:
    return ran(scenario(f"zero{stage}", {"dp_shard": 2}, model=LLAMA, topology=topology, seq_len=512, recompute="full",
                        precision={"compute": "fp16"}, micro_batch_size=sequences))


_TIGHT = {"RTX 3080 of 10 GB": "rtx-3080", "RTX 2080 Ti of 11 GB": "rtx-2080-ti", "RTX 4070 Ti of 12 GB": "rtx-4070-ti"}


def _cards() -> Sequence[Figure]:
    return [Figure("2 RTX 4090 of 24 GB, stage 2, 4 sequences of 512", "fits", verdict(_two(2, "rtx-4090", 4))),
            Figure("2 RTX 3090 of 24 GB, stage 2, 4 sequences of 512", "fits", verdict(_two(2, "rtx-3090", 4))),
            Figure("2 RTX 5090 of 32 GB, stage 2, 8 sequences of 512", "fits", verdict(_two(2, "rtx-5090", 8))),
            Figure("2 L40S of 48 GB, stage 2, 8 sequences of 512", "fits", verdict(_two(2, "l40s", 8))),
            Figure("2 RTX A5000 of 24 GB, stage 2, 4 sequences of 512", "fits", verdict(_two(2, "rtx-a5000", 4))),
            Figure("2 V100 of 32 GB, stage 2, 4 sequences of 512", "fits", verdict(_two(2, "v100-32gb", 4))),
            Figure("2 RTX 4080 of 16 GB, stage 3, 2 sequences of 512", "fits", verdict(_two(3, "rtx-4080", 2))),
            *(Figure(f"2 {name}, stage 3, 1 sequence of 512", "fits", verdict(_two(3, topology, 1)))
              for name, topology in _TIGHT.items())]


def _need() -> Sequence[Figure]:
    return [Figure("stage 2 on two, a card", 14.0, peak_gb(_two(2, "dgx-h200", 4)), unit="GB")]


def _ratio() -> Sequence[Figure]:
    def step_s(topology: str) -> float:
        report = ran(scenario("zero1", {"dp_shard": 2}, model=LLAMA, topology=topology, seq_len=512,
                              precision={"compute": "fp16"}, micro_batch_size=16), timed=True)
        assert report.time is not None
        return report.time.step_s

    return [Figure("a step on two A100, of one on two H100", 1.0, step_s("dgx-a100") / step_s("dgx-h100"), unit="times",
                   within=0.25)]


CLAIMS: tuple[Claim, ...] = (
    Claim("M59", "3 B parameters: 12 GB of weights and 24 of Adam in fp32, half of both in fp16.", BY_ITS_RULE,
          "DeepSpeed keeps fp32 masters and moments in fp16 training, 12 bytes a parameter, and the model has 3.2 B.",
          _formats),
    Claim("M60", "ZeRO in fp16 on 2 and 4 GPUs: 20 and 16 GB at stage 1, 14 and 10 at 2, 10 and 6 at 3.", REFUTED,
          "What rests before a step is more than every cell: 2 + 14/N bytes a parameter, 16/N at stage 3.", _stages),
    Claim("M61", "Two cards of 24 GB take it at stage 2 with 4 to 8 sequences, of 10 or 11 at stage 3 with 1 or 2.",
          REFUTED,
          "States alone are more than 24 GB on each of two cards, at both stages, before any activation.", _cards),
    Claim("M62", "14 GB a card are enough at stage 2 on two.", REFUTED, "States alone are twice that.", _need),
    Claim("M63", "50 epochs take 3 to 4 hours on two H200, H100 or A100.", REFUTED,
          "No size of the data is given; and the three cards do not take the same time.", _ratio),
    Claim("M64", "Effective batch = per device x GPUs x accumulation; offload to the CPU is for ZeRO-3 only.", REFUTED,
          "The batch is right. Stages 1 and 2 offload their optimizer too.", _batch),
)
