"""Document E: Llama-3.2-3B-Instruct with DeepSpeed on cards from 10 to 141 GB, M59 to M64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from claims.asked import at_rest_gb, holds, num_params, peak_gb, ran, scenario, step_s, verdict, yes
from claims.claim import REFUTED, REPRODUCED, Claim, Figure
from claims.document_c_checks import passes
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report

__all__ = ["CLAIMS", "MODEL"]

MODEL: Final = "llama-3.2-3b"
STEP: Final = "frag*12*B + ctx + 544*2**20"
"""Two cards of stage 1 or 2 in the optimizer's step: 9 bytes a parameter at rest, 3 more of gradients on the way."""


def _formats() -> Sequence[Figure]:
    """PyTorch without DeepSpeed: AdamW keeps its moments in the format of the parameters."""
    half, full = (ran(scenario("ddp", {"dp_replicate": 1}, model=MODEL, precision={"params": name, "compute": name}))
                  for name in ("fp16", "fp32"))
    count = sum(num_params(MODEL).values())
    rows = (("weights", "params_bytes", 1), ("gradients", "grads_bytes", 1), ("Adam", "optimizer_bytes", 2))
    return [Figure("parameters", 3.0, count / 1e9, "B", unit="billion", within=0.08),
            *(Figure(f"{name} in fp32", 12.0 * times, at_rest_gb(full, part), f"{4 * times}*B", rule=f"{4 * times}*3e9",
                     unit="GB", within=0.08) for name, part, times in rows),
            *(Figure(f"{name} in fp16", 6.0 * times, at_rest_gb(half, part), f"{2 * times}*B", rule=f"{2 * times}*3e9",
                     unit="GB", within=0.08) for name, part, times in rows)]


def _stages() -> Sequence[Figure]:
    """States of a GPU before activations; the published cells hold activations too."""
    published = {1: (20.0, 16.0), 2: (14.0, 10.0), 3: (10.0, 6.0)}
    return [Figure(f"stage {stage} on {gpus}", told,
                   at_rest_gb(ran(scenario(f"zero{stage}", {"dp_shard": gpus}, model=MODEL, topology="dgx-a100",
                                           precision={"compute": "fp16"}))),
                   f"2*B + 14*B/{gpus}" if stage < 3 else f"16*B/{gpus}", False, unit="GB", decides=True)
            for stage, cells in published.items() for gpus, told in zip((2, 4), cells, strict=True)]


def _asked_of_two(stage: int, topology: str, sequences: int, recompute: str = "full") -> Scenario:
    return scenario(f"zero{stage}", {"dp_shard": 2}, model=MODEL, topology=topology, seq_len=512, recompute=recompute,
                    precision={"compute": "fp16"}, micro_batch_size=sequences)


def _two(stage: int, topology: str, sequences: int) -> Report:
    return ran(_asked_of_two(stage, topology, sequences))


_CARDS: Final = (
    ("H200 of 141 GB", "dgx-h200", 2, 16), ("H100 of 80 GB", "dgx-h100", 2, 16), ("A100 of 80 GB", "dgx-a100", 2, 16),
    ("H100 PCIe of 80 GB", "h100-pcie", 2, 16), ("RTX 5090 of 32 GB", "rtx-5090", 2, 8),
    ("A100 of 40 GB", "dgx-a100-40gb", 2, 8), ("RTX A6000 of 48 GB", "rtx-a6000", 2, 8),
    ("L40S of 48 GB", "l40s", 2, 8), ("RTX 4090 of 24 GB", "rtx-4090", 2, 4), ("RTX 3090 of 24 GB", "rtx-3090", 2, 4),
    ("RTX A5000 of 24 GB", "rtx-a5000", 2, 4), ("V100 of 32 GB", "v100-32gb", 2, 4),
    ("RTX 4080 of 16 GB", "rtx-4080", 3, 2), ("RTX 3080 of 10 GB", "rtx-3080", 3, 1),
    ("RTX 2080 Ti of 11 GB", "rtx-2080-ti", 3, 1), ("RTX 4070 Ti of 12 GB", "rtx-4070-ti", 3, 1))
"""Names, topologies, stages and the smaller batch of all sixteen cards that the document gives a batch."""
_HOLD: Final = ("dgx-h200", "dgx-h100", "dgx-a100", "h100-pcie", "rtx-a6000", "l40s")
"""Cards with more than the 41 GB of the optimizer's step."""


def _cards() -> Sequence[Figure]:
    def expected(topology: str) -> tuple[str, bool | None]:
        if topology == "dgx-a100-40gb":
            return "unsure", None
        return ("fits", True) if topology in _HOLD else ("does not fit", False)

    words = [Figure(f"2 {name}, stage {stage}, {sequences} of 512", "fits", verdict(_two(stage, topology, sequences)),
                    *expected(topology), decides=expected(topology)[1] is False)
             for name, topology, stage, sequences in _CARDS]
    hold = sum(holds(_two(stage, topology, sequences)) for _, topology, stage, sequences in _CARDS)
    return [*words, Figure("cards that hold it by the peak, of 16", 16.0, float(hold), "7", False, decides=True),
            Figure("stage 2 on two, a card", None, peak_gb(_two(2, "rtx-4090", 4)), STEP, None, unit="GB"),
            Figure("stage 3 on two, at rest", None, at_rest_gb(_two(3, "rtx-4080", 2)), "16*B/2", None, unit="GB")]


def _need() -> Sequence[Figure]:
    packed = ran(scenario("ddp", {"dp_replicate": 2}, model=MODEL, topology="rtx-2080-ti", method="qlora", seq_len=512,
                          recompute="full", precision={"compute": "fp16"},
                          lora={"rank": 16, "alpha": 32, "target_modules": ["q_proj", "v_proj"]}))
    hand = ("frag*(0.515869*(B - 128256*3072 - 57*3072) + 2*128256*3072 + 512*(12*W + 30*6144)) + ctx + "
            "544*2**20")
    return [Figure("stage 2 on two, a card", 14.0, peak_gb(_two(2, "dgx-h200", 4)), "frag*12*B + ctx + nccl", False,
                   unit="GB", decides=True),
            Figure("stage 3 on two RTX 2080 Ti, a card", 10.0, at_rest_gb(_two(3, "rtx-2080-ti", 1)), "16*B/2", False,
                   unit="GB", decides=True),
            Figure("QLoRA on RTX 2080 Ti, in GiB as tools show it", 4.0, peak_gb(packed) * 1e9 / 2**30, hand,
                   unit="GiB", within=0.05),
            Figure("two H200, 64 sequences of 512 a card", "fits", verdict(_two(2, "dgx-h200", 64)), "fits")]


_TIMES: Final = (("H200", "dgx-h200", 1, 16), ("H100", "dgx-h100", 1, 16), ("A100", "dgx-a100", 1, 16),
                 ("RTX 5090", "rtx-5090", 2, 8), ("RTX 4090", "rtx-4090", 2, 4), ("RTX 3090", "rtx-3090", 2, 4),
                 ("RTX 4080", "rtx-4080", 2, 4), ("RTX 3080", "rtx-3080", 3, 2), ("RTX 4070 Ti", "rtx-4070-ti", 3, 2))


def _ratio() -> Sequence[Figure]:
    """Rows of the table by time: 3 to 4 h, 5 to 6, 6 to 8, 8 to 10, 12 to 16; seconds of a sequence by the engine."""
    a_sequence = {name: step_s(_asked_of_two(stage, topology, batch, "none")) / (2 * batch)
                  for name, topology, stage, batch in _TIMES}
    rows = [holds(ran(_asked_of_two(stage, topology, batch, "none"))) for _, topology, stage, batch in _TIMES]
    order = sorted(a_sequence, key=a_sequence.__getitem__)
    return [Figure("cards that hold their row, of 9", 9.0, float(sum(rows)), "3", False, decides=True),
            Figure("two RTX 3080 at stage 3, at rest", None, at_rest_gb(_two(3, "rtx-3080", 2)), "16*B/2", None,
                   unit="GB"),
            Figure("two A100 take as long as two H100, within a quarter", "yes",
                   yes(a_sequence["A100"] <= 1.25 * a_sequence["H100"]), "no", False, decides=True),
            Figure("two RTX 4090 take two times as long as two H100, if they held it, within a half", "yes",
                   yes(a_sequence["RTX 4090"] <= 3 * a_sequence["H100"]), "no", False, decides=True),
            Figure("the cards' order by time is the table's", "yes", yes(order == [name for name, *_ in _TIMES]),
                   "yes")]


def _batch() -> Sequence[Figure]:
    given = {"model": "llama-tiny", "micro_batch_size": 4, "global_batch_size": 16}
    asked = scenario("zero2", {"dp_shard": 2}, model=MODEL, offload={"optimizer": "host"})
    plain = scenario("zero2", {"dp_shard": 2}, model=MODEL)
    return [Figure("16 sequences, 4 a device on 2 GPUs: accumulated", 2.0, passes("fsdp2", **given), "16/(4*2)",
                   unit="times"),
            Figure("offload to the CPU is for stage 3 alone", "yes", yes(at_rest_gb(ran(asked), "optimizer_bytes") > 0),
                   "no", False, decides=True),
            Figure("stage 2: states on the device without offload", None, at_rest_gb(ran(plain), "optimizer_bytes"),
                   "12*B/2", None, unit="GB")]


CLAIMS: tuple[Claim, ...] = (
    Claim("M59", "Standard PyTorch, 3 B parameters: 12 GB of weights, 12 of gradients and 24 of Adam in fp32, half of "
          "all in fp16.", REPRODUCED,
          "Without DeepSpeed AdamW keeps moments in the format of the parameters, and no masters. The model has 3.2 B, "
          "so everything is a little more. Activations have no sequence length beside them.", _formats),
    Claim("M60", "ZeRO in fp16 on 2 and 4 GPUs: 20 and 16 GB at stage 1, 14 and 10 at 2, 10 and 6 at 3.", REFUTED,
          "What rests before a step is more than every cell: 2 + 14/N bytes a parameter, 16/N at stage 3.", _stages),
    Claim("M61", "Sixteen cards, two of each: 80 GB and more with 16 to 32 sequences, 24 GB at stage 2 with 4 to 8, 10 "
          "or 11 at stage 3 with 1 or 2.", REFUTED,
          "States alone are more than 24 GB on each of two cards, at both stages, and the optimizer's step takes more "
          "than 32: no consumer card holds it. Cards of 48 GB and more do, at 512 tokens with layers recomputed; of an "
          "A100 of 40 GB the limit lies inside the band.", _cards),
    Claim("M62", "14 GB a card are enough at stage 2 on two, 10 at stage 3; QLoRA takes about 4; an H200 takes 64 "
          "sequences.", REFUTED,
          "States alone are twice that. QLoRA is right, and so is the batch, with layers recomputed.", _need),
    Claim("M63", "50 epochs take 3 to 4 hours on two H200, H100 or A100, 6 to 8 on RTX 4090, 12 to 16 on RTX 3080.",
          REFUTED,
          "No size of the data is given, so only ratios can be asked. Cards below 80 GB do not hold their row; and the "
          "spread of times is much wider than the table's.", _ratio),
    Claim("M64", "Effective batch = per device x GPUs x accumulation; offload to the CPU is for ZeRO-3 only.", REFUTED,
          "The batch is right. Stages 1 and 2 offload their optimizer too.", _batch),
)
