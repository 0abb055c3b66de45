"""Document C, tables of a dense Nemotron of 100 B on H100, H200 and B200: M36 to M43.

Such a model was never published: the preset says which shape is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from claims.asked import (
    GB,
    at_rest_gb,
    fewest,
    fullest,
    held_gb,
    num_params,
    peak_gb,
    ran,
    scenario,
    step_s,
    trained,
    verdict,
    yes,
)
from claims.claim import REFUTED, REPRODUCED, UNDECIDED, Between, Claim, Figure
from simcore.hardware.topology import load_topology
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report

__all__ = ["CLAIMS", "DENSE", "FULL", "LORA", "QLORA", "adapted", "full", "quantised"]

DENSE: Final = "nemotron-dense-100b"
LORA: Final[dict[str, Any]] = {"method": "lora", "lora": {"rank": 16, "alpha": 32, "target_modules": [
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}}
QLORA: Final[dict[str, Any]] = LORA | {"method": "qlora"}
PAGED: Final[dict[str, Any]] = {"optimizer": {"name": "adamw", "implementation": "bitsandbytes", "paged": True}}
TOKENS: Final = "4096*(76*20480 + 12*W)"
"""Inputs of 72 layers and of the loss, logits in bf16 and fp32 and their gradient, of one sequence."""
FULL: Final = f"{TOKENS} + 2*W*10240 + 1e9"
"""The same, the gathered head and the bucket of gradients."""
BASE: Final = "0.515869*L + 2*(P - L)"
"""NF4: half a byte, one byte a block of 64 and four a 16,384; embeddings and norms in bf16."""
ONE: Final = f"frag*({BASE} + 2*A16 + {TOKENS}) + 8*A16 + ctx"


def asked_full(gpus: int, topology: str = "dgx-h100", seq_len: int = 4096, **given: Any) -> Scenario:
    """ZeRO-3 in bf16 with fp32 masters and moments, whole layers recomputed."""
    return scenario("zero3", {"dp_shard": gpus}, model=DENSE, topology=topology, seq_len=seq_len,
                    **{"recompute": "full", **given})


def full(gpus: int, topology: str = "dgx-h100", seq_len: int = 4096, **given: Any) -> Report:
    """Report of full fine-tuning under ZeRO-3."""
    return ran(asked_full(gpus, topology, seq_len, **given))


def adapted(gpus: int, topology: str = "dgx-h100", seq_len: int = 4096) -> Report:
    """Report of LoRA of rank 16 under ZeRO-3."""
    return full(gpus, topology, seq_len, **LORA)


def quantised(topology: str = "dgx-h200", seq_len: int = 4096) -> Report:
    """Report of QLoRA of rank 16 on one GPU, states of the optimizer paged."""
    return ran(scenario("ddp", {"dp_replicate": 1}, model=DENSE, topology=topology, seq_len=seq_len, recompute="full",
                        **QLORA, **PAGED))


def on(gpus: int) -> str:
    """Peak of full fine-tuning on some GPUs by hand."""
    return f"frag*(16*P/{gpus} + {FULL}) + ctx + nccl"


def _headline() -> Sequence[Figure]:
    many, eight, one = full(24), adapted(8), quantised()
    return [Figure("full: parameters, gradients and states of all GPUs", 1600.0, 24 * at_rest_gb(many), "16*P",
                   unit="GB"),
            Figure("full on 24 H100", "fits", verdict(many), "unsure", None),
            Figure("full on 24 H100: a GPU", None, peak_gb(many), on(24), None, unit="GB"),
            Figure("LoRA on 8 H100", "fits", verdict(eight), "fits"),
            Figure("QLoRA on one H200", "fits", verdict(one), "fits"),
            Figure("QLoRA on one H200: the GPU", 65.0, peak_gb(one), ONE, False, unit="GB", decides=True),
            Figure("times that a Spark of 128 GB runs out", 20.0, 24 * at_rest_gb(many) / 128, "16*P/128e9", False,
                   unit="times", decides=True)]


def _bytes_of_a_parameter() -> Sequence[Figure]:
    count = sum(num_params(DENSE).values())
    many, packed = full(24), fullest(quantised()).at_rest["mlp"]
    plain, again = asked_full(24, recompute="none"), asked_full(24)
    return [Figure("full, bytes a parameter", 16.0, 24 * at_rest_gb(many) * GB / count, "2 + 2 + 12"),
            Figure("parameters, gradients and states on each of 24", None, at_rest_gb(many), "16*P/24", None,
                   unit="GB"),
            Figure("bf16 weights", 2.0, 24 * at_rest_gb(many, "params_bytes") * GB / count, "2"),
            Figure("NF4 weights of linears, with their constants", 0.5,
                   (packed.params_bytes - 2 * packed.num_trainable_params)
                   / (packed.num_params - packed.num_trainable_params), "1/2 + 1/64 + 4/16384", within=0.04),
            Figure("trained by rank 16, of all", Between(0.5, 1.0), 100 * trained(quantised()) / count, "100*A16/P",
                   False, unit="%", decides=True),
            Figure("activations that stay with checkpointing", 0.5,
                   held_gb(ran(again), "activation") / held_gb(ran(plain), "activation"),
                   "(76*20480 + 4*W)/(72*500736 + 4*20480 + 4*W)", False, decides=True),
            Figure("checkpointing makes a step 25 to 35 % longer", "yes",
                   yes(0.25 <= step_s(again) / step_s(plain) - 1 <= 0.35), "no", False, decides=True)]


def _full_table() -> Sequence[Figure]:
    many = full(24)

    def activations(seq_len: int, recompute: str = "full") -> float:
        return 24 * held_gb(full(24, seq_len=seq_len, recompute=recompute), "activation", "recompute")

    parts = (("weights", 200.0, "params_bytes", "2*P"), ("gradients", 200.0, "grads_bytes", "2*P"),
             ("Adam", 1200.0, "optimizer_bytes", "12*P"))
    return [*(Figure(name, told, 24 * at_rest_gb(many, part), hand, rule=f"{hand[:-2]}*1e11", unit="GB", decides=True)
              for name, told, part, hand in parts),
            Figure("activations of one sequence of 4096 a GPU, 24 GPUs", 200.0, activations(4096),
                   "24*4096*(76*20480 + 4*W)", unit="GB"),
            Figure("activations of 8192 a GPU", 200.0, activations(8192), "24*8192*(76*20480 + 4*W)", False,
                   unit="GB"),
            Figure("activations without checkpointing, of those with", Between(5.0, 10.0),
                   activations(4096, "none") / activations(4096),
                   "(72*500736 + 4*20480 + 4*W)/(76*20480 + 4*W)", False, unit="times")]


def _how_many() -> Sequence[Figure]:
    nodes = 24 / load_topology("dgx-h100").gpus_per_node
    return [Figure("24 H100", "fits", verdict(full(24)), "unsure", None),
            Figure("24 H100: a GPU", None, peak_gb(full(24)), on(24), None, unit="GB"),
            Figure("fewest H100 by the peak, whatever the band (24 to 26)", None, fewest(full, (24, 25, 26)),
                   f"ceil(16*P/((card - ctx - nccl)/frag - ({FULL})))", None),
            Figure("32 H100", "fits", verdict(full(32)), "fits"),
            Figure("14 H200", "fits", verdict(full(14, "dgx-h200")), "fits"),
            Figure("16 H200", "fits", verdict(full(16, "dgx-h200")), "fits"),
            Figure("10 B200", "fits", verdict(full(10, "dgx-b200")), "unsure", None),
            Figure("12 B200", "fits", verdict(full(12, "dgx-b200")), "fits"),
            Figure("nodes that 24 GPUs are", Between(1.0, 2.0), nodes, "24/8", False, decides=True)]


def _capacity_of_a_node() -> Sequence[Figure]:
    report = full(8)
    return [Figure("one node of 8 H100 holds full fine-tuning", "no", yes(verdict(report) == "fits"), "no",
                   decides=True),
            Figure("parameters, gradients and states of a GPU of 8", None, at_rest_gb(report), "16*P/8", None,
                   unit="GB")]


def _lora_table() -> Sequence[Figure]:
    eight, four = adapted(8), adapted(4)
    return [Figure("base of all GPUs", 200.0, 8 * at_rest_gb(eight, "params_bytes"), "2*(P + A16)", unit="GB"),
            Figure("trained parameters of all GPUs", 1.0, trained(eight, everywhere=True) / 1e9, "A16", False,
                   unit="billion", decides=True),
            Figure("states of all GPUs", 12.0, 8 * at_rest_gb(eight, "optimizer_bytes"), "12*A16", False, unit="GB",
                   decides=True),
            Figure("on 4 H100", "fits", verdict(four), "fits"), Figure("on 8 H100", "fits", verdict(eight), "fits"),
            Figure("on 8 H100, a GPU", Between(25.0, 50.0), peak_gb(eight),
                   "frag*((2*P + 16*A16)/8 + 4096*76*20480 + 6*W*10240 + 1e9) + ctx + nccl", unit="GB", share=0.04)]


def _qlora_table() -> Sequence[Figure]:
    one = quantised()
    return [Figure("base, scratch and constants", 55.0, at_rest_gb(one, "params_bytes"), f"{BASE} + 2*A16", unit="GB"),
            Figure("one H200", "fits", verdict(one), "fits"),
            Figure("one B200", "fits", verdict(quantised("dgx-b200")), "fits"),
            Figure("one H100, 4096 tokens", "does not fit", verdict(quantised("dgx-h100")), "fits", False,
                   decides=True),
            Figure("the GPU, tight", 65.0, peak_gb(one), ONE, False, unit="GB", decides=True)]


def _three_bills() -> Sequence[Figure]:
    return [Figure("full fine-tuning on 24", "fits", verdict(full(24)), "unsure", None, decides=True),
            Figure("full fine-tuning on 24: a GPU", None, peak_gb(full(24)), on(24), None, unit="GB"),
            Figure("LoRA on 8", "fits", verdict(adapted(8)), "fits"),
            Figure("QLoRA on one H200", "fits", verdict(quantised()), "fits")]


CLAIMS: tuple[Claim, ...] = (
    Claim("M36", "Full fine-tuning of 100 B takes 1.6 TB and 24 H100, LoRA 250 GB on 8, QLoRA 65 GB on one H200; a "
          "Spark runs out twenty times over.", REFUTED,
          "1.6 TB are 12.5 times 128 GB, and QLoRA takes more than 65 GB. The bytes of full fine-tuning are right. "
          "Whether 24 GPUs leave room for a sequence of 4096 is undecided: the band of the simulation crosses the "
          "limit.", _headline),
    Claim("M37", "2 bytes in bf16, half a byte in NF4, 16 a parameter trained; rank 16 trains 0.5 to 1 %; "
          "checkpointing halves activations at 30 % of time.", REFUTED,
          "Bytes are right, NF4 with its constants a little more. But rank 16 on all linears of this width trains a "
          "quarter of a per cent, and checkpointing of whole layers leaves a twentieth of the activations; under "
          "ZeRO-3 gathers hide a part of the time.", _bytes_of_a_parameter),
    Claim("M38", "100 B in bf16: 200 GB of weights, 200 of gradients, 1,200 of Adam, 200 of activations.", REPRODUCED,
          "Weights, gradients and states are so. 200 GB of activations are what 24 GPUs hold of a sequence of 4096 "
          "each, and nothing else: they follow tokens (X10). Without checkpointing they are more than the 5 to 10 "
          "times that it gives.", _full_table),
    Claim("M39", "1.8 TB are 24 to 32 H100, one or two nodes; 14 to 16 H200; 10 to 12 B200.", REFUTED,
          "24 are three nodes of eight. Whether 24 H100 hold one sequence of 4096 each is undecided, as for 10 B200: "
          "the band crosses the limit; sequences of 2048, or a loss in chunks, leave room. The other numbers hold.",
          _how_many),
    Claim("M40", "100 B do not sit on one node: weights cross the NVLink bandwidth threshold of a DGX.", REPRODUCED,
          "One node does not hold it. The reason is capacity; bandwidth has another unit than bytes.",
          _capacity_of_a_node),
    Claim("M41", "LoRA: 200 GB of base, 14 of adapters and states; 4 to 8 H100, 25 to 50 GB each.", REFUTED,
          "Layouts and the base are right. Rank 16 on all linears trains a quarter of a per cent, not one, so adapters "
          "and states are a quarter of the table's.", _lora_table),
    Claim("M42", "QLoRA: 50 GB of base and 5 of scratch and constants, about 65 GB tight; one H200 or B200, two H100 "
          "at least.", REFUTED,
          "Base and constants are right, and so are H200 and B200. But it takes more than the 65 GB (its own rows add "
          "up to 93 at least), and one H100 holds it at 4096 tokens.", _qlora_table),
    Claim("M43", "24 to 8 to 1 GPUs, by which bill is paid.", UNDECIDED,
          "LoRA and QLoRA fit so. Full fine-tuning on 24 is within the band of the simulation.", _three_bills),
)
