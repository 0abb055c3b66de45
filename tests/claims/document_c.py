"""Document C: a dense Nemotron of 100 B on H100, H200, B200, and a DGX Spark, M36 to M54.

Such a model was never published: the preset says which shape is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from claims.asked import GB, at_rest_gb, fullest, num_params, peak_gb, ran, scenario, verdict
from claims.claim import BY_ITS_RULE, REFUTED, REPRODUCED, UNTESTABLE, Claim, Figure
from simcore.hardware.topology import load_topology
from simcore.results.report import Report

__all__ = ["CLAIMS"]

DENSE: Final = "nemotron-dense-100b"
LORA: Final[dict[str, Any]] = {"method": "lora", "lora": {"rank": 16, "alpha": 32, "target_modules": [
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}}
QLORA: Final[dict[str, Any]] = LORA | {"method": "qlora"}
PAGED: Final[dict[str, Any]] = {"optimizer": {"name": "adamw", "implementation": "bitsandbytes", "paged": True}}
SMALL: Final = "qwen2.5-3b"


def _full(gpus: int, topology: str = "dgx-h100", seq_len: int = 4096) -> Report:
    """ZeRO-3 in bf16 with fp32 masters and moments, whole layers recomputed."""
    return ran(scenario("zero3", {"dp_shard": gpus}, model=DENSE, topology=topology, seq_len=seq_len, recompute="full"))


def _adapted(gpus: int, topology: str = "dgx-h100", seq_len: int = 4096) -> Report:
    return ran(scenario("zero3", {"dp_shard": gpus}, model=DENSE, topology=topology, seq_len=seq_len, recompute="full",
                        **LORA))


def _quantised(topology: str = "dgx-h200", seq_len: int = 4096) -> Report:
    return ran(scenario("ddp", {"dp_replicate": 1}, model=DENSE, topology=topology, seq_len=seq_len, recompute="full",
                        **QLORA, **PAGED))


def _headline() -> Sequence[Figure]:
    full, adapted, quantised = _full(24), _adapted(8), _quantised()
    return [Figure("full: parameters, gradients and states of all GPUs", 1600.0, 24 * at_rest_gb(full), rule=1600.0,
                   unit="GB", within=0.05),
            Figure("full on 24 H100", "fits", verdict(full)), Figure("LoRA on 8 H100", "fits", verdict(adapted)),
            Figure("QLoRA on one H200", "fits", verdict(quantised)),
            Figure("QLoRA on one H200: the GPU", 65.0, peak_gb(quantised), unit="GB"),
            Figure("times that a Spark of 128 GB runs out", 20.0, 24 * at_rest_gb(full) / 128, unit="times")]


def _bytes_of_a_parameter() -> Sequence[Figure]:
    count = sum(num_params(DENSE).values())
    full = _full(24)
    packed = fullest(_quantised()).at_rest["mlp"]
    return [Figure("full, bytes a parameter", 16.0, 24 * at_rest_gb(full) * GB / count, rule=16.0, within=0.03),
            Figure("bf16 weights", 2.0, 24 * at_rest_gb(full, "params_bytes") * GB / count, rule=2.0, within=0.03),
            Figure("NF4 weights of linears, with their constants", 0.5,
                   (packed.params_bytes - 2 * packed.num_trainable_params)
                   / (packed.num_params - packed.num_trainable_params), rule=0.5),
            Figure("trained by rank 16, of all", 0.75, 100 * sum(
                c.num_trainable_params for c in fullest(_quantised()).at_rest.values()) / count, rule=0.75, unit="%",
                within=0.35)]


def _full_table() -> Sequence[Figure]:
    full = _full(24)
    whole = [24 * at_rest_gb(full, part) for part in ("params_bytes", "grads_bytes", "optimizer_bytes")]
    peak = fullest(full).peak
    assert peak is not None
    activations = 24 * (peak.by_category.get("activation", 0) + peak.by_category.get("recompute", 0)) / GB
    return [Figure(name, told, value, rule=told, unit="GB", within=0.03) for name, told, value in zip(
        ("weights", "gradients", "Adam"), (200.0, 200.0, 1200.0), whole, strict=True)] + [
        Figure("activations, one sequence of 4096 a GPU, recomputed", 200.0, activations, rule=200.0, unit="GB")]


def _how_many() -> Sequence[Figure]:
    return [Figure("24 H100", "fits", verdict(_full(24))), Figure("32 H100", "fits", verdict(_full(32))),
            Figure("14 H200", "fits", verdict(_full(14, "dgx-h200"))),
            Figure("16 H200", "fits", verdict(_full(16, "dgx-h200"))),
            Figure("10 B200", "fits", verdict(_full(10, "dgx-b200"))),
            Figure("nodes that 24 GPUs are", "1 to 2", str(24 // load_topology("dgx-h100").gpus_per_node))]


def _lora_table() -> Sequence[Figure]:
    adapted = _adapted(8)
    trained = sum(c.num_trainable_params for c in fullest(adapted).at_rest.values())
    return [Figure("base of all GPUs", 200.0, 8 * at_rest_gb(adapted, "params_bytes"), unit="GB", within=0.03),
            Figure("trained parameters of all GPUs", 1.0, 8 * trained / 1e9, unit="billion", within=0.6),
            Figure("states of all GPUs", 12.0, 8 * at_rest_gb(adapted, "optimizer_bytes"), unit="GB", within=0.6),
            Figure("on 4 H100", "fits", verdict(_adapted(4))), Figure("on 8 H100", "fits", verdict(_adapted(8))),
            Figure("on 8 H100, a GPU", "25 to 50 GB", "25 to 50 GB" if 25 <= peak_gb(adapted) <= 50 else
                   f"{peak_gb(adapted):.0f} GB")]


def _qlora_table() -> Sequence[Figure]:
    one = _quantised()
    return [Figure("base", 50.0, at_rest_gb(one, "params_bytes"), unit="GB", within=0.1),
            Figure("one H200", "fits", verdict(one)), Figure("one B200", "fits", verdict(_quantised("dgx-b200"))),
            Figure("the GPU, tight", 65.0, peak_gb(one), unit="GB")]


def _three_bills() -> Sequence[Figure]:
    return [Figure("GPUs of full fine-tuning, LoRA, QLoRA", "24 : 8 : 1",
                   " : ".join(str(gpus) for gpus, fits in ((24, _full(24)), (8, _adapted(8)), (1, _quantised()))
                              if fits.verdict == "fits"))]


def _spark(model: Any = SMALL, **given: Any) -> Report:
    return ran(scenario("ddp", {"dp_replicate": 1}, model=model, topology="dgx-spark", **LORA | {
        "micro_batch_size": 4, "recompute": "full"} | given))


def _spark_check() -> Sequence[Figure]:
    report = _spark(precision={"params": "bf16"})
    trained = sum(c.num_trainable_params for c in fullest(report).at_rest.values())
    peak = fullest(report).peak
    assert peak is not None
    stored = 36 * 4 * 2048 * 2048 * 2 / GB
    return [Figure("base", 6.0, at_rest_gb(report, "params_bytes"), unit="GB", within=0.06),
            Figure("trained", 30.0, trained / 1e6, unit="million", within=0.05),
            Figure("peak", 20.0, peak.allocated_bytes / GB, unit="GB", within=0.1),
            Figure("inputs of layers, by its formula of batch, length, width and layers", 9.0, stored, unit="GB")]


def _eight_and_49() -> Sequence[Figure]:
    """Full fine-tuning on one Spark, 16 bytes a parameter."""
    def on_spark(model: str) -> str:
        return verdict(ran(scenario("zero1", {"dp_shard": 1}, model=model, topology="dgx-spark", recompute="full",
                                    seq_len=2048)))

    return [Figure("8 B", "fits", on_spark("llama-3.1-nemotron-nano-8b")),
            Figure("49 B", "does not fit", on_spark("llama-3.3-nemotron-super-49b"))]


def _lengths() -> Sequence[Figure]:
    def activations(seq_len: int) -> int:
        peak = fullest(_adapted(8, seq_len=seq_len)).peak
        assert peak is not None
        return peak.allocated_bytes - sum(peak.by_category.get(name, 0) for name in ("sharded_param", "opt_state"))

    return [Figure("8192 tokens against 4096, what a step adds", 2.0, activations(8192) / activations(4096),
                   unit="times", within=0.15)]


def _effective_batch() -> Sequence[Figure]:
    asked = scenario("ddp", {"dp_replicate": 1}, model="llama-tiny", micro_batch_size=1, global_batch_size=32)
    return [Figure("micro-batch 1, accumulated 32 times", 32.0, float(asked.num_microbatches))]


def _two_layouts() -> Sequence[Figure]:
    wide = ran(scenario("fsdp2", {"dp_shard": 24}, model=DENSE, seq_len=4096, recompute="full"), timed=True)
    deep = ran(scenario("megatron", {"pp": 3, "tp": 8}, model=DENSE, seq_len=4096, recompute="full",
                        global_batch_size=24), timed=True)
    assert wide.time is not None
    assert deep.time is not None
    gathers = any(row.collective == "all_gather" for row in wide.ranks[0].traffic)
    reduces = any(row.collective == "reduce_scatter" for row in wide.ranks[0].traffic)
    return [Figure("FSDP gathers and reduce-scatters", "yes", "yes" if gathers and reduces else "no"),
            Figure("GPUs of tp 8 and pp 3", 24.0, float(sum(rank.num_ranks for rank in deep.ranks))),
            Figure("pp has a bubble", "yes", "yes" if dict(deep.time.parts)["bubble"] > 0 else "no"),
            Figure("FSDP over 24", "fits", verdict(wide)), Figure("tp 8, pp 3", "fits", verdict(deep))]


def _phases() -> Sequence[Figure]:
    peak = fullest(_full(16)).peak
    assert peak is not None
    return [Figure("the phase of a peak that states make", "backward or optimizer",
                   "backward or optimizer" if peak.phase in ("backward", "optimizer", "recompute") else peak.phase)]


def _cost() -> Sequence[Figure]:
    """72 hours at the dated prices of the topologies."""
    def hourly(topology: str) -> float:
        price = load_topology(topology).price_per_gpu_hour
        assert price is not None
        return price.si

    return [Figure("one H200, 72 hours", 200.0, 72 * hourly("dgx-h200"), unit="dollars", within=0.1),
            Figure("24 H100, 72 hours", 7000.0, 72 * 24 * hourly("dgx-h100"), unit="dollars", within=0.1)]


def _capacity_of_a_node() -> Sequence[Figure]:
    return [Figure("one node of 8 H100 holds full fine-tuning", "yes",
                   "yes" if _full(8).verdict == "fits" else "no")]


def _offloaded_step() -> Sequence[Figure]:
    def step_s(**offload: str) -> float:
        report = ran(scenario("zero2", {"dp_shard": 8}, model="llama-3.2-3b", recompute="full", offload=offload),
                     timed=True)
        assert report.time is not None
        return report.time.step_s

    plain, offloaded = step_s(), step_s(optimizer="host")
    return [Figure("a step with the optimizer on the host, of one without", 10.0, offloaded / plain, unit="times")]


def _sheet() -> Sequence[Figure]:
    """GB at rest of all GPUs, by method; larger models above smaller ones."""
    sizes = ("llama-2-7b", "llama-2-13b", "llama-2-70b", DENSE, "llama-3.1-405b")
    full = [64 * at_rest_gb(ran(scenario("zero3", {"dp_shard": 64}, model=name, recompute="full"))) for name in sizes]
    lora = [64 * at_rest_gb(ran(scenario("zero3", {"dp_shard": 64}, model=name, recompute="full", **LORA)))
            for name in sizes]
    packed = [at_rest_gb(ran(scenario("ddp", {"dp_replicate": 1}, model=name, recompute="full", **QLORA)))
              for name in sizes]
    ordered = all(a > b > c for a, b, c in zip(full, lora, packed, strict=True)) and sorted(full) == full
    return [Figure("full above LoRA above QLoRA, in every row", "yes", "yes" if ordered else "no")]


CLAIMS: tuple[Claim, ...] = (
    Claim("M36", "Full fine-tuning of 100 B takes 1.6 TB and 24 H100, LoRA 250 GB on 8, QLoRA 65 GB on one H200; a "
          "Spark runs out twenty times over.", REFUTED,
          "The bytes of full fine-tuning are right, but on 24 GPUs they leave no room for a sequence of 4096 and the "
          "layer that is gathered. 1.6 TB are 12.5 times 128 GB.", _headline),
    Claim("M37", "2 bytes in bf16, half a byte in NF4, 16 a parameter trained; rank 16 trains 0.5 to 1 %.", BY_ITS_RULE,
          "NF4 comes with a constant for each block: 0.516 bytes. And rank 16 on all linears of this width trains a "
          "quarter of a per cent. Everything else holds.",
          _bytes_of_a_parameter),
    Claim("M38", "100 B in bf16: 200 GB of weights, 200 of gradients, 1,200 of Adam, 200 of activations.", REPRODUCED,
          "Weights, gradients and states are so. Activations follow tokens, width and layers, not parameters: 200 GB "
          "are what 24 GPUs hold of a sequence of 4096 each.", _full_table),
    Claim("M39", "1.8 TB are 24 to 32 H100, one or two nodes; 14 to 16 H200; 10 to 12 B200.", REFUTED,
          "24 H100 do not hold it at one sequence of 4096 each, all other numbers do; and 24 are three nodes of "
          "eight.",
          _how_many),
    Claim("M40", "Weights cross the NVLink bandwidth threshold of a DGX.", REFUTED,
          "Bandwidth has another unit than bytes. What a node lacks is capacity.", _capacity_of_a_node),
    Claim("M41", "LoRA: 200 GB of base, 14 of adapters and states; 4 to 8 H100, 25 to 50 GB each.", REFUTED,
          "Layouts and the base are right. Rank 16 on all linears trains a quarter of a per cent, not one, so adapters "
          "and states are a quarter of the table's.", _lora_table),
    Claim("M42", "QLoRA: 50 GB of base, about 65 GB tight; one H200 or B200.", REFUTED,
          "It fits, in more than the 65 GB (its own rows add up to 93 at least). The base is larger than half a "
          "byte a parameter by its constants and by what stays in 16 bits.", _qlora_table),
    Claim("M43", "24 to 8 to 1 GPUs, by which bill is paid.", REFUTED,
          "LoRA and QLoRA fit so. Full fine-tuning needs more than 24.", _three_bills),
    Claim("M44", "Qwen2.5-3B with LoRA 16, batch 4 of 2048 on a Spark: 20 GB, of them 8 to 10 of activations by batch, "
          "length, width and layers.", REFUTED,
          "Its formula gives a seventh of that; logits in fp32 of 151,936 words and their gradient are the rest.",
          _spark_check),
    Claim("M45", "On a Spark of 128 GB, 8 B in bf16 with checkpointing fits, 49 B does not.", REFUTED,
          "8 B times 16 bytes are all of its memory: full fine-tuning leaves nothing for activations.", _eight_and_49),
    Claim("M46", "Twice the sequence is about twice the activations.", REPRODUCED,
          "With flash-attention everything that a step adds follows tokens, but for gathered layers.", _lengths),
    Claim("M47", "Effective batch = micro-batch times accumulation.", REPRODUCED, "By definition.", _effective_batch),
    Claim("M48", "FSDP gathers in forward and reduce-scatters in backward; 24 GPUs are FSDP over 24 or tp 8 with pp 3.",
          REFUTED, "Both layouts are legal and do as it says, but FSDP with fp32 parameters over 24 does not fit.",
          _two_layouts),
    Claim("M49", "An optimizer on the host: a step of 300 ms becomes 3 s.", REFUTED,
          "It does get longer, by copies over the host's link and an update at the pace of its memory, but ZeRO-2 on 8 "
          "H100 not ten times (Llama-3.2-3B, one sequence of 2048 a GPU; the CPU's pace is assumed).", _offloaded_step),
    Claim("M50", "An out-of-memory in backward is activations, in the optimizer's step states.", REPRODUCED,
          "A peak is told with its phase, layer and owners.", _phases),
    Claim("M51", "One sheet: 7 to 400 B, three methods, GPUs of each.", REPRODUCED,
          "More parameters need more GPUs, LoRA fewer, QLoRA fewest: the order holds in every row.", _sheet),
    Claim("M52", "Three days: 200 dollars for QLoRA on an H200, 7,000 for 24 H100.", REFUTED,
          "At the prices of our topology files (their dates stand there) an H200 costs more and H100s less.", _cost),
    Claim("M53", "KV-cache arithmetic is left to a further article.", UNTESTABLE, "No figure; serving has it.", tuple),
    Claim("M54", "Watch nvidia-smi dmon and profiler traces.", UNTESTABLE, "No figure.", tuple),
)
