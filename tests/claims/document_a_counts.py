"""Document A, parameters, adapters and components of Nemotron 3 Nano over H100 80 GB: M12 to M29."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from claims.asked import (
    FLEX,
    GB,
    at_rest_gb,
    fullest,
    held_gb,
    kept_gb,
    num_params,
    peak_gb,
    peak_of,
    ran,
    scenario,
    sized,
    trained,
    verdict,
    visited,
    yes,
)
from claims.claim import ANSWERED, BY_ITS_RULE, REFUTED, REPRODUCED, UNTESTABLE, Between, Claim, Figure
from claims.document_a_layouts import SERVED, asked_of_bridge, automodel, bridge, nemo_rl, slower_with_ep_4, total
from simcore.inputs.loading import load
from simcore.results.report import Report
from simcore.simulate import check

__all__ = ["CLAIMS", "adapted", "overhead_gb"]

EIGHT: Final = {"dp_shard": 8, "ep": 8}
CALCULATED: Final = 512.5
"""GB that `theoretical_memory_utils` of Megatron-Bridge 0.3.1 returned for full fine-tuning on 8 GPUs with ep 8."""


def _full(gpus: int) -> Report:
    return ran(scenario("megatron", {"dp_shard": gpus, "ep": 8, "etp": 1}, options=FLEX))


# ---- questions that the document leaves open ------------------------------------------------------------------------
def adapted(framework: str, module: str = "mixer.out_proj", **lora: Any) -> tuple[int, int]:
    """Numbers of layers in which a module has an adapter, and in which that adapter never learns."""
    etp = {"etp": 1} if framework == "megatron" else {}
    ep = {} if framework == "fsdp2" else {"ep": 8}
    options = FLEX if framework == "megatron" else {}
    told = ran(scenario(framework, {"dp_shard": 8, **ep, **etp}, options=options, method="lora",
                        lora={"rank": 8, **lora})).adapters
    assert told is not None
    return told.adapted.get(module, 0), told.without_gradient.get(module, 0)


def _mamba_targets() -> Sequence[Figure]:
    with_adapter, mute = adapted("megatron")
    return [Figure("Mamba layers in which Megatron-Bridge's default adapts out_proj", None, float(with_adapter), "23",
                   None, decides=True),
            Figure("of these learn", None, float(with_adapter - mute), "23", None, decides=True),
            Figure("layers with Automodel's exclusion", None,
                   yes(adapted("automodel", exclude_modules=["*.out_proj"])[0]), "no", None)]


def _benchmark() -> Sequence[Figure]:
    options = {"enable_fsdp_optimizations": True, "fake_balanced_gate": True, "attn": "sdpa", "dispatcher": "deepep"}
    report = ran(scenario("automodel", EIGHT, seq_len=4096, micro_batch_size=4, recompute="full",
                          global_batch_size=512, options=options, version="0.3.0", optimizer={"name": "adam"}),
                 timed=True)
    assert report.time is not None
    rate, tokens = report.time.model_tflops_per_gpu, report.time.tokens_per_s_per_gpu
    return [Figure("TFLOP/s a GPU, pretraining on 8 H100", 328.0, rate, "328", within=0.15, share=0.15, decides=True),
            Figure("GFLOP a token that they count (328 of 16,789 tokens a second)", 19.54, 1e3 * rate / tokens,
                   "6*(X*6/128 + D - E/2)/1e9")]


def _saving() -> Sequence[Figure]:
    one, half = (ran(load(SERVED)[number]).serving for number in (0, 1))
    assert one is not None
    assert half is not None
    saved = (one.kv_bytes_per_token - half.kv_bytes_per_token) * 262_144 / GB
    return [Figure("serving with tp 4: saved of a sequence of 262,144 tokens, a GPU", None, saved,
                   "262144*6*2*128", None, unit="GB", decides=True),
            Figure("serving with tp 4: tokens that the cache holds, of those in bf16", None,
                   half.cache_tokens / one.cache_tokens, "2", None)]


# ---- counts ---------------------------------------------------------------------------------------------------------
def _architecture() -> Sequence[Figure]:
    counted = num_params()
    told = bridge(EIGHT).adapters
    assert told is not None
    mixers = [told.adapted.get(name, 0) for name in ("mixer.in_proj", "self_attention.linear_qkv",
                                                     "mlp.shared_experts.linear_fc1")]
    serve = load(SERVED)[0].model_dump(mode="json")
    longest = [n for n in (262_144, 262_145) if check(type(load(SERVED)[0]).model_validate(
        serve | {"generation": serve["generation"] | {"max_model_len": n}})).status == "ok"]
    return [Figure("parameters", 31.6, sum(counted.values()) / 1e9, "X + D", unit="billion", within=0.001),
            Figure("routed experts: 23 layers, 128 of 2 x 2688 x 1856", 29.37, counted["routed_experts"] / 1e9, "X",
                   unit="billion", within=0.001),
            Figure("embedding and head: 131,072 words, 2688 wide", 0.7046,
                   (counted["embedding"] + counted["lm_head"]) / 1e9, "E", unit="billion", within=0.001),
            Figure("shared experts: 3712 wide", 0.459, counted["shared_experts"] / 1e9, "S", unit="billion",
                   within=0.001),
            Figure("layers with adapters of Mamba, attention, shared experts", 52.0, float(sum(mixers)), "23 + 6 + 23"),
            Figure("experts that a token visits, by rows that are sent", 6.0, visited(), "6"),
            Figure("longest sequence that is served", 262_144.0, float(max(longest)), "262144")]


def _safe_targets() -> Sequence[Figure]:
    everything: dict[str, Any] = {"target_modules": ["*out_proj", "*conv1d"]}
    fsdp2 = adapted("fsdp2", target_modules=["out_proj"])
    learns = adapted("megatron")
    return [Figure("Megatron: Mamba layers whose adapter of out_proj learns", 0.0, float(learns[0] - learns[1]), "23",
                   False, decides=True),
            Figure("Automodel: those whose adapter gets no gradient", 23.0,
                   float(adapted("automodel", **everything)[1]), "23"),
            Figure("transformers under FSDP2: the same", 23.0, float(fsdp2[1]), "23"),
            Figure("Automodel adapts conv1d", "no", yes(adapted("automodel", "mixer.conv1d", **everything)[0]), "no"),
            Figure("Megatron-Bridge adapts conv1d", "no", yes(check(scenario(
                "megatron", {**EIGHT, "etp": 1}, method="lora", lora={"target_modules": ["conv1d"]})).status == "ok"),
                "no")]


def _shares() -> Sequence[Figure]:
    counted = num_params()
    rest = counted["router"] + counted["norms"]
    ends = counted["embedding"] + counted["lm_head"]
    parts = {"routed experts": (58.75, counted["routed_experts"], "X"), "Mamba": (1.78, counted["mamba"], "M"),
             "embedding and head": (1.41, ends, "E"), "shared experts": (0.92, counted["shared_experts"], "S"),
             "attention": (0.28, counted["attention"], "A"), "routers and norms": (0.02, rest, "R"),
             "all": (63.16, sum(counted.values()), "(X + D)")}
    figures = [Figure(name, told, 2 * count / GB, f"2*{hand}", unit="GB", within=0.2 if told < 0.1 else 0.01,
                      share=0.005, decides=True) for name, (told, count, hand) in parts.items()]
    return [*figures, Figure("routed experts of all", 93.0, 100 * counted["routed_experts"] / sum(counted.values()),
                             "100*X/(X + D)", unit="%", within=0.01)]


def _by_gpus_of_bridge() -> Sequence[Figure]:
    reports = sized("bridge-lora-by-gpus")
    rows = (("1 GPU", 63.2, 79.7, "2*(X + D)", "ctx + libs", 0.03), ("4 GPUs, ep 4", 19.1, 27.9, "2*(X/4 + D)",
            "ctx + nccl + libs", 0.02), ("8 GPUs, ep 8", 11.8, 19.3, "2*(X/8 + D)", "ctx + nccl + libs", 0.02))
    figures = [Figure(f"{name}: weights", told, at_rest_gb(report, "params_bytes"), f"{hand} + 2*AM*32", unit="GB")
               for (name, told, _, hand, _, _), report in zip(rows, reports, strict=False)]
    figures += [Figure(f"{name}: total", told, peak_gb(report), total(2048, hand, outside=outside), within == 0.03,
                       unit="GB", within=within, decides=within < 0.03)
                for (name, _, told, hand, outside, within), report in zip(rows, reports, strict=False)]
    return [*figures,
            Figure("16 GPUs, tp 2, ep 8: weights", 9.6, at_rest_gb(reports[3], "params_bytes"),
                   "2*(X/8 + D/2) + 2*AM*32*0.6", unit="GB"),
            Figure("16 GPUs, tp 2, ep 8: total", 15.2, peak_gb(reports[3]), total(
                2048, "2*(X/8 + D/2)", "KM/2 + 52*2*2688 + 10*V/2", "ctx + 4*nccl + libs"), False, unit="GB",
                share=0.03, decides=True),
            Figure("1 GPU", "does not fit", verdict(reports[0]), "fits", False, decides=True)]


def _by_gpus_of_automodel() -> Sequence[Figure]:
    reports = sized("automodel-lora-by-gpus")
    rows = (("4 GPUs, ep 4", 15.8, "2*(X/4 + D/4)", "2*(X/4 + D/4)"), ("8 GPUs, ep 4", 15.2, "2*(X/8 + D/8)",
            "2*(X/4 + D/8)"), ("8 GPUs, ep 8", 7.9, "2*(X/8 + D/8)", "2*(X/8 + D/8)"))
    weights = [Figure(f"{name}: weights", told, at_rest_gb(report, "params_bytes"), hand, told != 15.2, rule=rule,
                      unit="GB", decides=told == 15.2)
               for (name, told, hand, rule), report in zip(rows, reports, strict=True)]
    return [*weights, *slower_with_ep_4()]


def _adapters() -> Sequence[Figure]:
    def millions(report: Report) -> float:
        return trained(report, everywhere=True) / 1e6

    eight = trained(automodel({"dp_shard": 1}, recompute="full")) / 1e6
    return [Figure("rank 8, Automodel", 220.0, eight, "8*AA", False, rule="8*(AE + AM - AX)", unit="million",
                   decides=True),
            Figure("rank 32, Megatron-Bridge, on a rank", 883.0, trained(bridge(EIGHT)) / 1e6, "32*AM", False,
                   rule="32*(AE + AM - AX)", unit="million", decides=True),
            Figure("rank 128, NeMo RL with transformers' layers", 3500.0, millions(nemo_rl(16, 128)), "128*AA", False,
                   rule="128*(AE + AM - AX)", unit="million"),
            Figure("rank 128, NeMo RL with the Hub's layers", 3500.0, millions(nemo_rl(16, 128, "hub")),
                   "128*(AE + AA)", rule="128*(AE + AM - AX)", unit="million"),
            Figure("rank 256, NeMo RL with transformers' layers", 7100.0, millions(nemo_rl(8, 256)), "256*AA", False,
                   rule="256*(AE + AM - AX)", unit="million"),
            Figure("rank 256, NeMo RL with the Hub's layers", 7100.0, millions(nemo_rl(8, 256, "hub")),
                   "256*(AE + AA)", rule="256*(AE + AM - AX)", unit="million")]


def _experts_on_a_gpu() -> Sequence[Figure]:
    def experts(ep: int) -> float:
        return fullest(bridge({"dp_shard": ep, "ep": ep})).at_rest["routed_experts"].params_bytes / GB

    plain = ran(scenario("fsdp2", {"dp_shard": 8}, precision={"params": "bf16"}, method="lora", lora={"rank": 32}))
    cut = fullest(plain).at_rest["routed_experts"].params_bytes / GB
    return [Figure("ep 8: routed experts of a GPU", 7.3, experts(8), "2*X/8", unit="GB"),
            Figure("ep 4: routed experts of a GPU", 14.7, experts(4), "2*X/4", unit="GB"),
            Figure("without ep, FSDP2 over 8: routed experts of a GPU", 58.75, cut, "2*X/8", False, unit="GB",
                   decides=True)]


# ---- components -----------------------------------------------------------------------------------------------------
_TENSORS: Final = "(2*(X/8 + D) + 6*AM*32 + 2048*(KM + 10*V))"


def overhead_gb() -> Sequence[Figure]:
    """Memory between what is allocated and what the device holds, LoRA 32 on 8 GPUs, with two dispatchers."""
    deepep = peak_of(bridge(EIGHT))
    plain = peak_of(ran(scenario("megatron", {**EIGHT, "etp": 1}, method="lora", lora={"rank": 32, "alpha": 32})))
    hands = (f"0.038*{_TENSORS} + ctx + nccl + 0.186e9", f"0.038*{_TENSORS} + ctx + 2*nccl + 7*32*14*2**20")
    return [Figure(f"overhead with {name}", Between(2.0, 4.0), (peak.device_bytes - peak.allocated_bytes) / GB, hand,
                   agrees, unit="GB", decides=not agrees)
            for name, agrees, peak, hand in zip(("DeepEP", "the default dispatcher"), (True, False), (deepep, plain),
                                                hands, strict=True)]


def _components_of_a_gpu() -> Sequence[Figure]:
    report = bridge(EIGHT)
    at_rest = fullest(report).at_rest.values()
    per_parameter = sum(c.grads_bytes + c.optimizer_bytes for c in at_rest) / trained(report) + 2
    return [Figure("bytes a trained parameter: weight, gradient and Adam", 12.0, per_parameter,
                   "(7.5*(AM - AX) + 18*AX)/AM", False, unit="bytes", decides=True), *overhead_gb()]


def _columns() -> Sequence[Figure]:
    full, lora = _full(16), bridge(EIGHT)
    return [Figure("full on 16, base", 11.8, at_rest_gb(full, "params_bytes"), "2*(X/8 + D)", unit="GB"),
            Figure("full on 16, optimizer", 23.6, at_rest_gb(full, "optimizer_bytes"), "12*(X + D)/16", unit="GB"),
            Figure("full on 16, gradients", 11.8, at_rest_gb(full, "grads_bytes"), "4*(X/8 + D)", False, unit="GB",
                   decides=True),
            Figure("full on 16, total", 56.0, peak_gb(full),
                   "frag*(6*(X/8 + D) + 12*(X + D)/16 + 2048*(KM + 10*V)) + ctx + 2*nccl + libs", False, unit="GB",
                   decides=True),
            Figure("LoRA 32 on 8, optimizer", 1.1, at_rest_gb(lora, "optimizer_bytes"), "12*32*((AM - AX)/8 + AX)",
                   False, unit="GB", decides=True),
            Figure("LoRA 32 on 8, total", 22.0, peak_gb(lora), total(2048), False, unit="GB", decides=True)]


def _weights_of_two_frameworks() -> Sequence[Figure]:
    return [Figure("Megatron, 8 ranks, ep 8", 11.7, at_rest_gb(_full(8), "params_bytes"), "2*(X/8 + D)", unit="GB",
                   decides=True),
            Figure("Automodel, 4 ranks, ep 4", 15.8, at_rest_gb(automodel({"dp_shard": 4, "ep": 4}), "params_bytes"),
                   "2*(X + D)/4", unit="GB", decides=True)]


def _rules_of_the_mesh() -> Sequence[Figure]:
    def legal(mesh: dict[str, int]) -> str:
        return yes(check(scenario("automodel", mesh, method="lora", lora={"rank": 8})).status == "ok")

    cut, whole = trained(automodel(EIGHT)), trained(automodel({"dp_shard": 1}, recompute="full"))
    return [Figure("ep 4 on 8 ranks is legal", "yes", legal({"dp_shard": 8, "ep": 4}), "yes"),
            Figure("ep 8 on 4 ranks is legal", "no", legal({"dp_shard": 4, "ep": 8}), "no"),
            Figure("ep 3 on 8 ranks is legal", "no", legal({"dp_shard": 8, "ep": 3}), "no"),
            Figure("adapters of a rank, of all: replicated", 1.0, cut / whole, "1/8", False, decides=True),
            Figure("adapters of a rank", None, cut / 1e6, "8*AA/8", None, unit="million")]


def _by_layer_kind() -> Sequence[Figure]:
    """Per kind of layer, of what a step keeps for backward at 8192 tokens."""
    asked = asked_of_bridge(EIGHT, seq_len=8192)
    report = ran(asked)
    loss = kept_gb(asked, "loss") + held_gb(report, "backward_temp")
    return [Figure("MoE layers", 16.2, kept_gb(asked, "moe"), "8192*23*105438", False, unit="GB", decides=True),
            Figure("Mamba layers", 7.1, kept_gb(asked, "mamba"), "8192*23*56100", False, unit="GB", decides=True),
            Figure("attention layers", 1.1, kept_gb(asked, "attention"), "8192*6*28420", False, unit="GB",
                   decides=True),
            Figure("embeddings and the rest: logits and their gradients", 0.1, loss, "8192*10*V", False, unit="GB",
                   decides=True),
            Figure("activations in all, gradients of logits left out", 24.5, held_gb(report, "activation"),
                   "8192*(KM + 4*V)", False, unit="GB", decides=True)]


def _calculator() -> Sequence[Figure]:
    """The calculator's own result for full fine-tuning on 8 GPUs, against what rests there."""
    return [Figure("without ep, of what is there", 8.0, CALCULATED / at_rest_gb(_full(8)),
                   "512.5e9/(6*(X/8 + D) + 12*(X + D)/8)", False, unit="times", within=0.2, decides=True),
            Figure("without LoRA, optimizer of what is trained", 35.0,
                   sum(num_params().values()) / trained(bridge(EIGHT)), "(X + D)/(32*AM)", False, unit="times",
                   decides=True)]


CLAIMS: tuple[Claim, ...] = (
    Claim("M12", "Does the default target out_proj hit Mamba layers?", ANSWERED,
          "In Megatron-Bridge yes, and the adapter is called as a module, so it learns.", _mamba_targets),
    Claim("M13", "328 TFLOP/s a GPU in pretraining are the only anchor of speed.", REPRODUCED,
          "Simulated from the recipe; the step is among the rows that shares were fitted on, and what the fit leaves "
          "of it is a tenth. The arithmetic that the rate counts is the published one.", _benchmark),
    Claim("M14", "What an fp8 cache saves is to be counted.", ANSWERED,
          "In serving half of the cache. A training step has none (M9).", _saving),
    Claim("M15", "No recipe beyond 2048 tokens has been run.", UNTESTABLE, "A statement on recipes; see M8.", tuple),
    Claim("M16", "31.6 B parameters, 52 layers, 2688 wide; 128 experts of 1856, 6 for a token; 262,144 tokens at most.",
          REPRODUCED, "Counted in tensors that are made, rows that are sent and lengths that are served.",
          _architecture),
    Claim("M17", "LoRA never on Mamba's out_proj nor on conv1d: a fused kernel reads their weights.", REFUTED,
          "By framework: Megatron's training path calls the module, and the adapter learns. In Automodel and "
          "transformers it never does, as the claim says, and no framework adapts conv1d.", _safe_targets),
    Claim("M18", "93 % of the weights are routed experts: 58.75 of 63.16 GB.", REPRODUCED,
          "Counted tensor by tensor.", _shares),
    Claim("M19", "Megatron, rank 32: 63.2, 19.1, 11.8 and 9.6 GB of weights on 1, 4, 8 and 16 GPUs; 1 GPU does not "
          "fit.", REFUTED,
          "Weights are right. Totals on several GPUs leave out overhead that it lists elsewhere, and what activations "
          "take; a card of 80 GB gives a program more than that (X5), so one GPU does hold it, at one sequence.",
          _by_gpus_of_bridge),
    Claim("M20", "Automodel, rank 8: 15.8, 15.2 and 7.9 GB of weights on 4 GPUs with ep 4, 8 with ep 4, 8 with ep 8; "
          "ep 4 on 8 for throughput.", BY_ITS_RULE,
          "With ep 4 on 8 ranks the experts are cut again over the two ranks that hold the same ones. They are "
          "gathered for the step, which makes it slower than ep 8, not faster, and fuller.", _by_gpus_of_automodel),
    Claim("M21", "12 bytes a trained parameter, 2 to 4 GB of overhead.", REFUTED,
          "Bridge keeps fp32 gradients and masters. Adapters of experts, which no other rank of 8 shares, take 18 "
          "bytes, those of other layers 7.5, because 8 ranks share their states. The overhead is at the lower end of "
          "the range with DeepEP and above it with the default dispatcher.", _components_of_a_gpu),
    Claim("M22", "Adapters: 220 M at rank 8, 883 M at 32, 3.5 B at 128, 7.1 B at 256.", BY_ITS_RULE,
          "The figures count an adapter for every routed expert. Automodel's matcher skips grouped experts, and "
          "Bridge makes one adapter a rank and grouped matrix. NeMo RL makes what the figures say: its recipes set "
          "`force_hf`, which loads the Hub's code, where each expert has linears of its own; with transformers' "
          "grouped experts it would be a thirtieth.",
          _adapters),
    Claim("M23", "Routed experts take 7.3 GB a GPU with ep 8, 14.7 with ep 4, and only ep can distribute them.",
          REFUTED, "FSDP2 cuts them without any ep.", _experts_on_a_gpu),
    Claim("M24", "Full on 16: 11.8 of weights, 23.6 of states, 11.8 of gradients, 56 in all; LoRA 22.", REFUTED,
          "Weights and states are right. Gradients are fp32, twice as many bytes; and adapters are a thirtieth.",
          _columns),
    Claim("M25", "Weights of a GPU: 11.7 GB under Megatron on 8 with ep 8, 15.8 under Automodel on 4 with ep 4.",
          REPRODUCED, "Megatron keeps everything but experts whole on each rank, Automodel cuts it.",
          _weights_of_two_frameworks),
    Claim("M26", "ep divides the ranks; experts are cut, adapters replicated.", REFUTED,
          "The rules of the mesh are so; adapters are cut like everything else.", _rules_of_the_mesh),
    Claim("M27", "8192 tokens: 24.5 GB of activations, of them MoE 16.2, Mamba 7.1, attention 1.1, the rest 0.1.",
          REFUTED,
          "Inputs of norms and of adapters are left out in every kind of layer, and logits of 131,072 words with their "
          "gradients altogether.", _by_layer_kind),
    Claim("M28", "Bridge's calculator is 8 times too high without ep, 35 times without LoRA.", REFUTED,
          "Version 0.3.1 returns 512.5 GB for 8 GPUs, about six times what rests there, and against the adapters that "
          "are made its optimizer is 900 times too high.", _calculator),
    Claim("M29", "Paths to read again at each release.", UNTESTABLE, "No figure.", tuple),
)
