"""Document C, a DGX Spark, lengths, layouts, failures, a sheet and prices: M44 to M54."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from claims.asked import (
    FLEX,
    at_rest_gb,
    fewest,
    held_gb,
    kept_gb,
    peak_gb,
    peak_of,
    ran,
    scenario,
    step_s,
    trained,
    verdict,
    yes,
)
from claims.claim import ANSWERED, REFUTED, REPRODUCED, UNTESTABLE, Between, Claim, Figure
from claims.document_c_table import DENSE, FULL, LORA, PAGED, QLORA, adapted, full, quantised
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report

__all__ = ["CLAIMS", "passes"]

TOPOLOGIES: Final = Path(__file__).resolve().parents[2] / "topologies"
EIGHT_B: Final = "llama-3.1-nemotron-nano-8b"
LARGEST: Final = "llama-3.1-405b"


def _spark_check() -> Sequence[Figure]:
    asked = scenario("ddp", {"dp_replicate": 1}, model="qwen2.5-3b", topology="dgx-spark", precision={"params": "bf16"},
                     **LORA | {"micro_batch_size": 4, "recompute": "full"})
    report, layers = ran(asked), "8192*37*2*2048"
    adapters = "36*16*(2*4096 + 2*2304 + 3*13056)"
    return [Figure("base", 6.0, at_rest_gb(report, "params_bytes"), f"2*Q + 2*{adapters}", unit="GB", within=0.06),
            Figure("trained", 30.0, trained(report) / 1e6, adapters, unit="million"),
            Figure("peak, in GiB as tools show it", 20.0, peak_of(report).allocated_bytes / 2**30,
                   f"2*Q + 8*{adapters} + {layers} + 8192*12*151936", unit="GiB", within=0.06, decides=True),
            Figure("activations by batch, length, width and layers", Between(8.0, 10.0),
                   kept_gb(asked, "attention+mlp") or held_gb(report, "activation") - kept_gb(asked, "loss"),
                   layers, False, unit="GB", share=0.045),
            Figure("logits in bf16 and fp32, and their gradient", None,
                   kept_gb(asked, "loss") + held_gb(report, "backward_temp"), "8192*12*151936", None, unit="GB")]


def _eight_and_49() -> Sequence[Figure]:
    """Full fine-tuning on one Spark, 16 bytes a parameter."""
    def on_spark(model: str) -> Report:
        return ran(scenario("zero1", {"dp_shard": 1}, model=model, topology="dgx-spark", recompute="full"))

    small, large = on_spark(EIGHT_B), on_spark("llama-3.3-nemotron-super-49b")
    return [Figure("8 B", "fits", verdict(small), "does not fit", False, decides=True),
            Figure("8 B: parameters, gradients and states", None, at_rest_gb(small), "16*8.03e9", None, unit="GB"),
            Figure("49 B", "does not fit", verdict(large), "does not fit")]


def _lengths() -> Sequence[Figure]:
    def tokens(seq_len: int) -> float:
        return held_gb(quantised(seq_len=seq_len), "activation", "backward_temp")

    def on_two(topology: str, seq_len: int) -> Report:
        return ran(scenario("fsdp2", {"dp_shard": 2}, model=DENSE, topology=topology, seq_len=seq_len,
                            recompute="full", options={"bnb_4bit_quant_storage": "bfloat16"}, **QLORA))

    def eager(seq_len: int) -> float:
        asked = scenario("ddp", {"dp_replicate": 1}, model="llama-3.1-8b", seq_len=seq_len,
                         options={"attn_implementation": "eager"}, **LORA)
        return kept_gb(asked, "decoder", "self_attn.softmax", "self_attn.to_bf16")

    hand = ("frag*(L/4 + 0.015869*L + 2*(P - L) + 6*A16 + 4*W*10240 + 8192*(76*20480 + 12*W)) + ctx + nccl")
    return [Figure("8192 tokens against 4096, activations and gradients of logits", 2.0, tokens(8192) / tokens(4096),
                   "2", unit="times", decides=True),
            Figure("QLoRA on one H200, 32768 tokens", "does not fit", verdict(quantised(seq_len=32768)),
                   "does not fit"),
            Figure("QLoRA on two H100, 8192 tokens, packed weights cut too", "fits", verdict(on_two("dgx-h100", 8192)),
                   "fits"),
            Figure("a GPU of the two", None, peak_gb(on_two("dgx-h100", 8192)), hand, None, unit="GB"),
            Figure("QLoRA on one H100, 8192 tokens", "does not fit", verdict(quantised("dgx-h100", 8192)), "unsure",
                   None),
            Figure("un-fused attention, 8 B, 4096 tokens: probabilities of 32 layers, fp32 and again bf16", None,
                   eager(4096), "32*32*6*4096*4096", None, unit="GB"),
            Figure("the same, 8192 tokens against 4096: quadratic", 4.0, eager(8192) / eager(4096), "4", unit="times"),
            Figure("at 32768 tokens those of one layer are more than an H100 has", "yes",
                   yes(eager(32_768) / 32 > 79.1 * 2**30 / 1e9), "yes")]


def passes(framework: str, **given: Any) -> float:
    """Microbatches of a step: gathers of FSDP2 on two ranks, of those of a step of one microbatch."""
    def gathers(sequences: int) -> int:
        report = ran(scenario(framework, {"dp_shard": 2}, **given | {"global_batch_size": sequences}))
        return sum(row.calls for row in report.ranks[0].traffic if row.phase == "forward")

    one = 2 * given.get("micro_batch_size", 1)
    return gathers(given["global_batch_size"]) / gathers(one)


def _effective_batch() -> Sequence[Figure]:
    times = passes("fsdp2", model="llama-tiny", micro_batch_size=1, global_batch_size=64)
    return [Figure("64 sequences on 2 GPUs, 1 at a time: accumulated", 32.0, times, "64/2", unit="times")]


def _asked_of_layout(name: str) -> Scenario:
    rows: dict[str, tuple[str, dict[str, int]]] = {"FSDP": ("fsdp2", {"dp_shard": 24}),
                                                   "tp 8, pp 3": ("megatron", {"pp": 3, "tp": 8})}
    framework, mesh = rows[name]
    return scenario(framework, mesh, model=DENSE, seq_len=4096, recompute="full", global_batch_size=24)


def _step_of(name: str, sequences: int) -> float:
    """Seconds of a step of that many sequences."""
    asked = _asked_of_layout(name)
    training = asked.training.model_copy(update={"global_batch_size": sequences})
    return step_s(asked.model_copy(update={"training": training}))


def _two_layouts() -> Sequence[Figure]:
    wide, deep = (ran(_asked_of_layout(name), timed=True) for name in ("FSDP", "tp 8, pp 3"))
    assert deep.time is not None
    kinds = {(row.collective, row.phase) for row in wide.ranks[0].traffic}
    return [Figure("FSDP gathers in forward and reduce-scatters in backward", "yes",
                   yes({("all_gather", "forward"), ("reduce_scatter", "backward")} <= kinds), "yes"),
            Figure("pp has a bubble", "yes", yes(dict(deep.time.parts)["bubble"] > 0), "yes"),
            Figure("FSDP over 24, a sequence of 4096", "fits", verdict(wide), "unsure", None),
            Figure("FSDP over 24: parameters, gradients and states of a GPU", None, at_rest_gb(wide), "16*P/24", None,
                   unit="GB"),
            Figure("tp 8, pp 3, the same", "fits", verdict(deep), "unsure", None),
            Figure("tp 8, pp 3: parameters, gradients and states of a GPU", None, at_rest_gb(deep), "18*P/24", None,
                   unit="GB"),
            Figure("tp 8 with pp 3 is faster, 24 sequences a step", "yes",
                   yes(_step_of("tp 8, pp 3", 24) < _step_of("FSDP", 24)), "no", False, decides=True),
            Figure("the same, 192 sequences a step, which fill the stages", "yes",
                   yes(_step_of("tp 8, pp 3", 192) < _step_of("FSDP", 192)), "no", False, decides=True)]


def _offloaded_step() -> Sequence[Figure]:
    def asked(**offload: str) -> Scenario:
        return scenario("zero2", {"dp_shard": 8}, model="llama-3.2-3b", recompute="full", offload=offload)

    ratio = step_s(asked(optimizer="host")) / step_s(asked())
    copied = {row.axis: row.payload_bytes / 1e9 for row in ran(asked(optimizer="host")).ranks[0].traffic
              if row.collective == "copy"}
    return [Figure("a step with the optimizer on the host is ten times as long", "yes", yes(ratio >= 9), "no", False,
                   decides=True),
            Figure("it is longer", "yes", yes(ratio > 1.2), "yes"),
            Figure("gradients that a GPU of 8 copies to the host, fp32", None, copied["to_host"], "4*B/8", None,
                   unit="GB"),
            Figure("weights that come back, bf16", None, copied["to_device"], "2*B/8", None, unit="GB")]


def _phases() -> Sequence[Figure]:
    """Phases of peaks: states that take nearly everything, tokens that do, and layouts without tp."""
    states = ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, options=FLEX, seq_len=128))
    small = ran(scenario("ddp", {"dp_replicate": 1}, model=EIGHT_B, seq_len=128))
    tokens = ran(scenario("ddp", {"dp_replicate": 1}, model=EIGHT_B, micro_batch_size=8, **LORA))
    no_tp = ran(scenario("zero3", {"dp_shard": 16}, model="llama-3.1-405b", seq_len=4096, recompute="full", **LORA))
    return [Figure("DDP, 8 B, 128 tokens: the phase of the peak", "optimizer", peak_of(small).phase, "optimizer"),
            Figure("DDP, 8 B, LoRA, 16,384 tokens: the same", "backward", peak_of(tokens).phase, "backward"),
            Figure("Megatron, Nano on 8, 128 tokens: the same", "optimizer", peak_of(states).phase, "backward", False,
                   decides=True),
            Figure("of it parameters, gradients and states", None, at_rest_gb(states), "6*(X/8 + D) + 12*(X + D)/8",
                   None, unit="GB"),
            Figure("ZeRO-3 without tp, 405 B with LoRA: a peak in forward, which is a TP boundary", "no",
                   yes(peak_of(no_tp).phase == "forward"), "yes", False, decides=True)]


def _fewest(model: str, counts: tuple[int, ...], **given: Any) -> float:
    return fewest(lambda gpus: ran(scenario("zero3", {"dp_shard": gpus}, model=model, seq_len=4096, recompute="full",
                                            **given)), counts)


def _quantised_whole(model: str) -> Report:
    return ran(scenario("ddp", {"dp_replicate": 1}, model=model, topology="dgx-h200", seq_len=4096, recompute="full",
                        **QLORA, **PAGED))


def _sheet() -> Sequence[Figure]:
    """Fewest H100 by the peak, one sequence of 4096 tokens a GPU, whole layers recomputed."""
    room = "((card - ctx - nccl)/frag - 1e9 - 4096"
    rows = (("7 B", "llama-2-7b", (1, 2), f"ceil(16*6.738e9/{room}*(34*8192 + 12*32000)))"),
            ("13 B", "llama-2-13b", (2, 3), f"ceil(16*13.016e9/{room}*(42*10240 + 12*32000)))"),
            ("70 B", "llama-2-70b", (15, 16), f"ceil(16*68.977e9/{room}*(82*16384 + 12*32000) - 2e9))"),
            ("405 B", LARGEST, (127, 128), f"ceil(16*405.85e9/{room}*126*32768 - 2*3.188e9 - 4*16384*53248 - 2e9))"))
    largest = "(card - ctx - nccl)/frag - 1e9 - 4096*(126*32768 + 2*W) - 4*W*16384 - 2*3.188e9"
    lora = "(card - ctx - nccl)/frag - 4096*76*20480 - 6*W*10240 - 1e9"
    return [*(Figure(f"full, {size}", None, _fewest(model, counts), hand, None) for size, model, counts, hand in rows),
            Figure("full, 100 B: 24 to 32", Between(24.0, 32.0), fewest(full, (24, 25)),
                   f"ceil(16*P/((card - ctx - nccl)/frag - ({FULL})))", decides=True),
            Figure("LoRA, 7 B", None, _fewest("llama-2-7b", (1, 2), **LORA), "1", None),
            Figure("LoRA, 405 B", None, _fewest(LARGEST, (17, 18), **LORA), f"ceil(2*405.85e9/({largest}))", None),
            Figure("QLoRA, 405 B, one H200", None, verdict(_quantised_whole(LARGEST)), "does not fit", None),
            Figure("LoRA, 100 B: 4 to 8", Between(4.0, 8.0), fewest(adapted, (3, 4, 8)),
                   f"ceil((2*P + 16*A16)/({lora}))", decides=True),
            Figure("QLoRA, 100 B: one", "fits", verdict(quantised("dgx-h100")), "fits", decides=True)]


def _priced(topology: str, price: str, gpus: int) -> float:
    """Dollars of 72 hours of a job at another price of a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        text = (TOPOLOGIES / f"{topology}.yaml").read_text(encoding="utf-8")
        path = Path(folder) / f"{topology}.yaml"
        path.write_text(re.sub(r'(?m)^(price_per_gpu_hour: {value: ")[^ ]*', rf"\g<1>{price}", text), encoding="utf-8")
        asked = (scenario("ddp", {"dp_replicate": 1}, model=DENSE, topology=str(path), seq_len=4096, recompute="full",
                          **QLORA, **PAGED) if gpus == 1 else
                 scenario("zero3", {"dp_shard": gpus}, model=DENSE, topology=str(path), seq_len=4096, recompute="full"))
        time = ran(asked, timed=True).time
    assert time is not None
    assert time.cost is not None
    assert time.cost.per_step is not None
    return time.cost.per_step / time.step_s * 72 * 3600


def _cost() -> Sequence[Figure]:
    """72 hours at the guide's own prices: 3 dollars an hour of an H200, 80 to 100 of 24 H100."""
    return [Figure("one H200 at 3 dollars, 72 hours", 200.0, _priced("dgx-h200", "3", 1), "72*3", unit="dollars",
                   within=0.1),
            Figure("24 H100 at 90 dollars, 72 hours", 7000.0, _priced("dgx-h100", "3.75", 24), "72*90", unit="dollars",
                   within=0.1)]


def _cache() -> Sequence[Figure]:
    report = ran(Scenario.model_validate({"name": "claim", "workload": "serve", "model": DENSE, "topology": "dgx-h100",
                                          "generation": {"tp": 4, "max_model_len": 131_072}}))
    assert report.serving is not None
    return [Figure("bytes of keys and values a token, on one of 4 H100", None,
                   float(report.serving.kv_bytes_per_token), "72*2*8/4*128*2", None, unit="bytes", decides=True),
            Figure("weights of a GPU", None, report.serving.weight_bytes / 1e9, "2*P/4", None, unit="GB",
                   decides=True),
            Figure("131,072 tokens are served", None, yes(report.serving.longest >= 131_072), "yes", None,
                   decides=True)]


CLAIMS: tuple[Claim, ...] = (
    Claim("M44", "Qwen2.5-3B with LoRA 16, batch 4 of 2048 on a Spark: 20 GB measured, of them 8 to 10 of activations "
          "by batch, length, width and layers.", REPRODUCED,
          "The measured peak, in the unit that tools show. The formula beside it is wrong: it gives a seventh of what "
          "it names; logits of 151,936 words and their gradient are the rest.", _spark_check),
    Claim("M45", "On a Spark of 128 GB, 8 B in bf16 with checkpointing fits, 49 B does not.", REFUTED,
          "8 B times 16 bytes are all of its memory: full fine-tuning leaves nothing for activations.", _eight_and_49),
    Claim("M46", "Twice the sequence is about twice the activations; length turns QLoRA on one GPU into two.",
          REPRODUCED,
          "With flash-attention everything that tokens add follows their number; un-fused, probabilities follow its "
          "square. The turn comes on an H100 at 8192 tokens, within the band, and on an H200 before 32768; two GPUs "
          "help if packed weights are cut too, which needs their storage in 16 bits.",
          _lengths),
    Claim("M47", "Effective batch = micro-batch times accumulation.", REPRODUCED, "Counted in passes over the layers.",
          _effective_batch),
    Claim("M48", "FSDP gathers in forward and reduce-scatters in backward; 24 GPUs are FSDP over 24 or tp 8 with pp 3, "
          "which is faster.", REFUTED,
          "Both layouts are legal, and at 4096 tokens, a length that the document does not name, the limit lies "
          "inside the band of both. tp 8 with pp 3 is not the faster one: tensor parallelism sends every layer's "
          "activations, and stages wait, less with 192 sequences a step than with 24.", _two_layouts),
    Claim("M49", "An optimizer on the host: a step of 300 ms becomes 3 s.", REFUTED,
          "It does get longer, by copies over the host's link and an update at the pace of its memory, but ZeRO-2 on 8 "
          "H100 not ten times (Llama-3.2-3B, one sequence of 2048 a GPU; the CPU's pace is assumed).", _offloaded_step),
    Claim("M50", "An out-of-memory in backward is activations, in the optimizer's step states, in forward a TP "
          "boundary.", REFUTED,
          "True of DDP. Under Megatron states do not peak in the optimizer's step, which needs nothing more, but at "
          "the end of backward; and a large model under ZeRO-3 peaks in forward without any tensor parallelism, where "
          "gathered layers meet the kept inputs.", _phases),
    Claim("M51", "One sheet: 7 to 400 B, three methods, GPUs of each.", REPRODUCED,
          "The document's own row of 100 B lies as it says; the smallest number for full fine-tuning is within the "
          "band (M39). The other rows have no published value.", _sheet),
    Claim("M52", "Three days: 200 dollars for QLoRA on an H200, 7,000 for 24 H100.", REPRODUCED,
          "At its own prices of a GPU-hour, rounded. Prices of the topology files are of other days.", _cost),
    Claim("M53", "KV-cache arithmetic is left to a further article.", ANSWERED,
          "A dense 100 B with 8 KV heads on 4 GPUs keeps two heads on each.", _cache),
    Claim("M54", "Watch nvidia-smi dmon and profiler traces.", UNTESTABLE, "No figure.", tuple),
)
