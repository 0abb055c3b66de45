"""Document A: LoRA sizes of Nemotron 3 Nano on H100 80 GB in bf16, M1 to M29."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from claims.asked import GB, NANO, at_rest_gb, fullest, num_params, peak_gb, ran, scenario, sized, verdict
from claims.claim import BY_ITS_RULE, REFUTED, REPRODUCED, UNTESTABLE, Claim, Figure
from simcore.inputs.loading import load
from simcore.models.graph import model_config
from simcore.results.report import Report
from simcore.simulate import check

__all__ = ["CLAIMS"]

GRPO: Final = Path(__file__).resolve().parents[2] / "scenarios" / "nano-grpo" / "lora-16gpu.yaml"
BRIDGE: Final[dict[str, Any]] = {"method": "lora", "lora": {"rank": 32, "alpha": 32}, "global_batch_size": 128}
AUTOMODEL: Final[dict[str, Any]] = {"method": "lora", "optimizer": {"name": "adam"},
                                    "lora": {"rank": 8, "alpha": 32, "exclude_modules": ["*.out_proj"]}}
FLEX: Final = {"moe_token_dispatcher_type": "flex"}
ACTIVATIONS_GB: Final = 24.5 / 8192
"""Its own rule: of a token, whatever is trained."""


def _bridge(mesh: dict[str, int], **given: Any) -> Report:
    return ran(scenario("megatron", {"etp": 1, **mesh}, options=FLEX, **BRIDGE | given))


def _automodel(mesh: dict[str, int], **given: Any) -> Report:
    return ran(scenario("automodel", mesh, **AUTOMODEL | given))


# ---- tables of layouts ----------------------------------------------------------------------------------------------
def _at_a_glance() -> Sequence[Figure]:
    return [
        Figure("Megatron-Bridge, LoRA on 8", "fits", verdict(_bridge({"dp_shard": 8, "ep": 8}))),
        Figure("Megatron-Bridge, LoRA on 4", "does not fit", verdict(_bridge({"dp_shard": 4, "ep": 4}))),
        Figure("Megatron-Bridge, full SFT on 16", "fits",
               verdict(ran(scenario("megatron", {"dp_shard": 16, "ep": 8, "etp": 1}, options=FLEX)))),
        Figure("Megatron-Bridge, full SFT on 8", "does not fit",
               verdict(ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, options=FLEX)))),
        Figure("Automodel, LoRA on 4", "fits", verdict(_automodel({"dp_shard": 4, "ep": 4}))),
        Figure("Automodel, LoRA on 2", "does not fit", verdict(_automodel({"dp_shard": 2, "ep": 2}))),
        Figure("Automodel, full SFT on 8", "fits",
               verdict(ran(scenario("automodel", {"dp_shard": 8, "ep": 8}, optimizer={"name": "adam"})))),
    ]


def _bridge_sizes() -> Sequence[Figure]:
    return [Figure("8 GPUs, 2048 tokens, 8 sequences", "fits", verdict(sized("bridge-min-lora")[1])),
            Figure("full, 16 GPUs, 2048 tokens, 4 sequences", "fits", verdict(sized("bridge-min-sft")[2])),
            Figure("16 GPUs, tp 2, 2048 tokens, 16 sequences", "fits", verdict(sized("bridge-recommended-lora")[1])),
            Figure("16 GPUs, tp 2, 8192 tokens, 2 sequences", "fits", verdict(sized("bridge-long-lora-8k")[0])),
            Figure("8192 tokens, 2 sequences, without tp 2", "does not fit",
                   verdict(_bridge({"dp_shard": 16, "ep": 8}, seq_len=8192, micro_batch_size=2))),
            Figure("32 GPUs, tp 4, 32768 tokens, 1 sequence", "fits", verdict(sized("bridge-long-lora-32k")[0]))]


def _automodel_sizes() -> Sequence[Figure]:
    return [Figure("4 GPUs, ep 4, 2048 tokens, 8 sequences", "fits", verdict(sized("automodel-min-lora")[0])),
            Figure("8 GPUs, ep 8, 2048 tokens, 8 sequences: a GPU", 14.0,
                   peak_gb(sized("automodel-recommended-lora")[0]), unit="GB"),
            Figure("8 GPUs, ep 8, 8192 tokens, 2 sequences", "fits", verdict(sized("automodel-long-lora-8k")[0])),
            Figure("8 GPUs, ep 8, 16384 tokens, 1 sequence", "fits", verdict(sized("automodel-long-lora-16k")[0]))]


def _by_length() -> Sequence[Figure]:
    published = (18.9, 22.0, 28.1, 40.3, 64.8, 113.8)
    reports = sized("bridge-lora-by-length")
    lengths = (1024, 2048, 4096, 8192, 16384, 32768)
    totals = [Figure(f"{length} tokens", told, peak_gb(report), rule=15.8 + ACTIVATIONS_GB * length, unit="GB")
              for told, report, length in zip(published, reports, lengths, strict=True)]
    return [*totals, Figure("16384 tokens", "fits", verdict(reports[4]), rule="fits")]


def _longer() -> Sequence[Figure]:
    published = (64.8, 62.0, 36.1, 60.9, 36.0)
    shapes = ("16384, tp 1", "32768, tp 2", "32768, tp 4", "65536, tp 4", "65536, tp 4, cp 2")
    totals = [Figure(f"tokens {shape}", told, peak_gb(report), unit="GB")
              for told, shape, report in zip(published, shapes, sized("bridge-lora-longer"), strict=True)]
    fewer = sized("bridge-lora-fewer-gpus")[1]
    return [*totals, Figure("32768, tp 4 on one node of 8", "does not fit", verdict(fewer))]


def _by_gpus_of_bridge() -> Sequence[Figure]:
    reports = sized("bridge-lora-by-gpus")
    weights, totals = (63.2, 19.1, 11.8, 9.6), (79.7, 27.9, 19.3, 15.2)
    names = ("1 GPU", "4 GPUs, ep 4", "8 GPUs, ep 8", "16 GPUs, tp 2, ep 8")
    figures = [Figure(f"{name}: weights", told, at_rest_gb(report, "params_bytes"), unit="GB")
               for name, told, report in zip(names, weights, reports, strict=True)]
    figures += [Figure(f"{name}: total", told, peak_gb(report), unit="GB")
                for name, told, report in zip(names, totals, reports, strict=True)]
    return [*figures, Figure("1 GPU", "does not fit", verdict(reports[0]))]


def _by_gpus_of_automodel() -> Sequence[Figure]:
    reports = sized("automodel-lora-by-gpus")
    names = ("4 GPUs, ep 4", "8 GPUs, ep 4", "8 GPUs, ep 8")
    counted = num_params()
    dense = sum(counted.values()) - counted["routed_experts"]
    cuts = ((4, 4), (4, 8), (8, 8))
    rules = [2 * (counted["routed_experts"] / ep + dense / dp) / GB for ep, dp in cuts]
    return [Figure(f"{name}: weights", told, at_rest_gb(report, "params_bytes"), rule=rule, unit="GB")
            for name, told, report, rule in zip(names, (15.8, 15.2, 7.9), reports, rules, strict=True)]


def _tp_on_one_node() -> Sequence[Figure]:
    return [Figure("tp 2 with ep 8", "16 GPUs", f"{ran_on_8(2)} GPUs"),
            Figure("tp 4 with ep 8", "32 GPUs", f"{ran_on_8(4)} GPUs")]


def ran_on_8(tp: int) -> int:
    """GPUs of the smallest legal layout."""
    return sum(rank.num_ranks for rank in _bridge({"dp_shard": 8 // tp, "tp": tp, "ep": 8}).ranks)


# ---- counts ---------------------------------------------------------------------------------------------------------
def _architecture() -> Sequence[Figure]:
    config = model_config(NANO, None, "model")
    read = {"hidden size": ("hidden_size", 2688), "vocabulary": ("vocab_size", 131_072),
            "routed experts": ("n_routed_experts", 128), "experts of a token": ("num_experts_per_tok", 6),
            "width of an expert": ("moe_intermediate_size", 1856),
            "width of the shared expert": ("moe_shared_expert_intermediate_size", 3712),
            "longest sequence": ("max_position_embeddings", 262_144)}
    figures = [Figure(name, told, int(config[field]), within=0.0) for name, (field, told) in read.items()]
    return [*figures, Figure("layers", 52, len(str(config["hybrid_override_pattern"])), within=0.0),
            Figure("parameters", 31.6, sum(num_params().values()) / 1e9, unit="billion", within=0.001)]


def _shares() -> Sequence[Figure]:
    counted = num_params()
    rest = counted["router"] + counted["norms"]
    ends = counted["embedding"] + counted["lm_head"]
    parts = {"routed experts": (58.75, counted["routed_experts"]), "Mamba": (1.78, counted["mamba"]),
             "embedding and head": (1.41, ends), "shared experts": (0.92, counted["shared_experts"]),
             "attention": (0.28, counted["attention"]), "routers and norms": (0.02, rest),
             "all": (63.16, sum(counted.values()))}
    figures = [Figure(name, told, 2 * count / GB, unit="GB", within=0.2 if told < 0.1 else 0.01)
               for name, (told, count) in parts.items()]
    return [*figures, Figure("routed experts of all", 93.0, 100 * counted["routed_experts"] / sum(counted.values()),
                             unit="%", within=0.01)]


def _trained(report: Report) -> float:
    """Millions of trained parameters, whole, as a rank's share times the ranks that split them."""
    rank = fullest(report)
    return sum(c.num_trainable_params for c in rank.at_rest.values()) / 1e6


def _adapters() -> Sequence[Figure]:
    per_rank = 27.589
    bridge = _trained(_bridge({"dp_shard": 8, "ep": 8}))
    automodel = _trained(_automodel({"dp_shard": 1}, recompute="full"))
    return [Figure("rank 8, Automodel", 220.0, automodel, rule=8 * per_rank, unit="million"),
            Figure("rank 32, Megatron-Bridge, on a rank", 883.0, bridge, rule=32 * per_rank, unit="million"),
            Figure("rank 128", 3500.0, 128 / 8 * automodel, rule=128 * per_rank, unit="million"),
            Figure("rank 256", 7100.0, 256 / 8 * automodel, rule=256 * per_rank, unit="million")]


def _experts_on_a_gpu() -> Sequence[Figure]:
    def experts(ep: int) -> float:
        rank = fullest(ran(scenario("megatron", {"dp_shard": ep, "ep": ep, "etp": 1}, options=FLEX, **BRIDGE)))
        return rank.at_rest["routed_experts"].params_bytes / GB

    plain = ran(scenario("fsdp2", {"dp_shard": 8}, precision={"params": "bf16"}, **BRIDGE))
    cut = fullest(plain).at_rest["routed_experts"].params_bytes / GB
    return [Figure("ep 8: routed experts of a GPU", 7.3, experts(8), unit="GB"),
            Figure("ep 4: routed experts of a GPU", 14.7, experts(4), unit="GB"),
            Figure("without ep, FSDP2 over 8: routed experts of a GPU", 58.75, cut, unit="GB")]


def _weights_of_two_frameworks() -> Sequence[Figure]:
    return [Figure("Megatron, 8 ranks, ep 8", 11.7,
                   at_rest_gb(ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, options=FLEX)),
                              "params_bytes"), unit="GB"),
            Figure("Automodel, 4 ranks, ep 4", 15.8,
                   at_rest_gb(_automodel({"dp_shard": 4, "ep": 4}), "params_bytes"), unit="GB")]


# ---- components -----------------------------------------------------------------------------------------------------
def _launched() -> Sequence[Figure]:
    asked = scenario("megatron", {"dp_shard": 8, "tp": 2, "ep": 8, "etp": 1}, options=FLEX, **BRIDGE)
    return [Figure("processes that the long-context command starts for 16 GPUs", 8.0,
                   float(sum(rank.num_ranks for rank in ran(asked).ranks)))]


def _nemo_rl() -> Sequence[Figure]:
    """SFT with LoRA and without under FSDP2, GRPO beside a colocated engine, as the recipes stand."""
    lora: dict[str, Any] = {"method": "lora", "lora": {"rank": 256, "alpha": 512, "exclude_modules": ["*out_proj*"]},
            "optimizer": {"name": "adamw"}}
    (grpo,) = load(GRPO)
    return [Figure("SFT with LoRA 256 on 8", "fits", verdict(ran(scenario("automodel", {"dp_shard": 8}, **lora)))),
            Figure("GRPO with LoRA on 16", "fits", verdict(ran(grpo))),
            Figure("ranks of 128 to 256 need more GPUs for states", "yes",
                   "no" if at_rest_gb(ran(scenario("automodel", {"dp_shard": 8}, **lora)), "optimizer_bytes") < 1
                   else "yes")]


def _regimes() -> Sequence[Figure]:
    def held(seq_len: int) -> tuple[float, float]:
        report = _bridge({"dp_shard": 8, "ep": 8}, seq_len=seq_len)
        weights = at_rest_gb(report, "params_bytes")
        return weights, peak_gb(report) - at_rest_gb(report)

    short, long = held(1024), held(8192)
    middle = held(4096)
    return [Figure("1024 tokens: weights are above what a step adds", "yes", "yes" if short[0] > short[1] else "no"),
            Figure("8192 tokens: below", "yes", "yes" if long[0] < long[1] else "no"),
            Figure("4096 tokens: weights are above", "yes", "yes" if middle[0] > middle[1] else "no"),
            Figure("what 4096 tokens more add, of what the first 4096 did after 1024", 4 / 3,
                   (long[1] - middle[1]) / (middle[1] - short[1]))]


def _narrow_cache() -> Sequence[Figure]:
    peak = fullest(_bridge({"dp_shard": 8, "ep": 8}, seq_len=8192)).peak
    assert peak is not None
    return [Figure("a KV cache in a training step", "yes", "yes" if peak.by_category.get("kv_cache") else "no")]


def _four_gpus() -> Sequence[Figure]:
    return [Figure("4 GPUs, ep 4, a GPU", 22.0, peak_gb(sized("automodel-lora-by-gpus")[0]), unit="GB"),
            Figure("4 GPUs, ep 4", "fits", verdict(sized("automodel-lora-by-gpus")[0]))]


def _bridge_on_four() -> Sequence[Figure]:
    return [Figure("Megatron-Bridge, ep 4 on 4 GPUs", "fits", verdict(sized("bridge-lora-by-gpus")[1]))]


def _hits_mamba(framework: str, mesh: dict[str, int], **lora: Any) -> str:
    options = FLEX if framework == "megatron" else {}
    told = ran(scenario(framework, mesh, options=options, method="lora", lora={"rank": 8, **lora})).adapters
    assert told is not None
    return "yes" if any("mixer.out_proj" in name for name in told.adapted) else "no"


def _mamba_targets() -> Sequence[Figure]:
    return [Figure("Megatron-Bridge's default adapts Mamba's out_proj", "yes",
                   _hits_mamba("megatron", {"dp_shard": 8, "ep": 8, "etp": 1})),
            Figure("Automodel with its exclusion does", "no",
                   _hits_mamba("automodel", {"dp_shard": 8, "ep": 8}, exclude_modules=["*.out_proj"]))]


def _safe_targets() -> Sequence[Figure]:
    return [Figure("an adapter of Mamba's out_proj never learns, whatever the framework", "yes",
                   "no" if _hits_mamba("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}) == "yes" else "yes")]


def _benchmark() -> Sequence[Figure]:
    options = {"enable_fsdp_optimizations": True, "fake_balanced_gate": True, "attn": "sdpa", "dispatcher": "deepep"}
    report = ran(scenario("automodel", {"dp_shard": 8, "ep": 8}, seq_len=4096, micro_batch_size=4, recompute="full",
                          global_batch_size=512, options=options, version="0.3.0", optimizer={"name": "adam"}),
                 timed=True)
    assert report.time is not None
    return [Figure("TFLOP/s a GPU, pretraining on 8 H100", 328.0, report.time.model_tflops_per_gpu or 0.0, within=0.15)]


def _components_of_a_gpu() -> Sequence[Figure]:
    report = _bridge({"dp_shard": 8, "ep": 8})
    at_rest = fullest(report).at_rest.values()
    trained = sum(c.num_trainable_params for c in at_rest)
    peak = fullest(report).peak
    assert peak is not None
    return [Figure("bytes a trained parameter: weight, Adam and gradient", 12.0,
                   (sum(c.grads_bytes + c.optimizer_bytes for c in at_rest)) / trained + 2, unit="bytes"),
            Figure("overhead", 3.0, (peak.device_bytes - peak.allocated_bytes) / GB, unit="GB", within=0.5)]


def _columns() -> Sequence[Figure]:
    full = ran(scenario("megatron", {"dp_shard": 16, "ep": 8, "etp": 1}, options=FLEX))
    adapted = _bridge({"dp_shard": 8, "ep": 8})
    return [Figure("full on 16, base", 11.8, at_rest_gb(full, "params_bytes"), unit="GB"),
            Figure("full on 16, optimizer", 23.6, at_rest_gb(full, "optimizer_bytes"), unit="GB"),
            Figure("full on 16, gradients", 11.8, at_rest_gb(full, "grads_bytes"), unit="GB"),
            Figure("full on 16, total", 56.0, peak_gb(full), unit="GB"),
            Figure("LoRA 32 on 8, optimizer", 1.1, at_rest_gb(adapted, "optimizer_bytes"), unit="GB"),
            Figure("LoRA 32 on 8, total", 22.0, peak_gb(adapted), unit="GB")]


def _rules_of_the_mesh() -> Sequence[Figure]:
    def legal(mesh: dict[str, int]) -> str:
        return "yes" if check(scenario("automodel", mesh, **AUTOMODEL)).status == "ok" else "no"

    adapters = fullest(_automodel({"dp_shard": 8, "ep": 8})).at_rest
    whole = fullest(_automodel({"dp_shard": 1}, recompute="full")).at_rest
    cut = sum(c.num_trainable_params for c in adapters.values()) / sum(c.num_trainable_params for c in whole.values())
    return [Figure("ep 4 on 8 ranks is legal", "yes", legal({"dp_shard": 8, "ep": 4})),
            Figure("ep 8 on 4 ranks is legal", "no", legal({"dp_shard": 4, "ep": 8})),
            Figure("ep 3 on 8 ranks is legal", "no", legal({"dp_shard": 8, "ep": 3})),
            Figure("adapters of a rank, of all: replicated", 1.0, cut)]


def _by_layer_kind() -> Sequence[Figure]:
    """Per kind of layer, of what a step keeps for backward at 8192 tokens."""
    peak = fullest(_bridge({"dp_shard": 8, "ep": 8}, seq_len=8192)).peak
    assert peak is not None
    logits = 8192 * 131_072 * 2 / GB
    kept = peak.by_category.get("activation", 0) / GB
    return [Figure("activations in all", 24.5, kept, unit="GB"),
            Figure("logits and embeddings", 0.1, logits, unit="GB")]


def _calculator() -> Sequence[Figure]:
    """Figures of Bridge 0.3.1's formula for full fine-tuning on 8 GPUs: 18 bytes a parameter, unsharded."""
    full = ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, options=FLEX))
    at_rest = at_rest_gb(full)
    return [Figure("without ep, of what is there", 8.0, 18 * sum(num_params().values()) / GB / at_rest, unit="times",
                   within=0.2),
            Figure("without LoRA, optimizer of what is trained", 35.0,
                   sum(num_params().values()) / 1e6 / _trained(_bridge({"dp_shard": 8, "ep": 8})), unit="times")]


CLAIMS: tuple[Claim, ...] = (
    Claim("M1", "Fewest H100: Megatron-Bridge 8 for LoRA and 16 for full fine-tuning, Automodel 4 and 8.", REFUTED,
          "Every named number of GPUs does fit one sequence of 2048 tokens, but for LoRA it is not the fewest: "
          "Megatron "
          "does with 4 and ep 4, Automodel with 2 and ep 2.",
          _at_a_glance),
    Claim("M2", "Largest micro-batches under Megatron-Bridge: 8 and 4 sequences of 2048 on 8 and 16 GPUs, 16 with tp "
    "2; "
          "8192 tokens need tp 2, 32768 need tp 4.", REFUTED,
          "Twice what fits at 2048 tokens: activations of a token are about twice the table's, and logits of 131,072 "
          "words are left out there. tp 2 at 8192 tokens and tp 4 at 32768 are right.", _bridge_sizes),
    Claim("M3", "torchrun commands of 8 processes, one of them for 16 GPUs.", REFUTED,
          "tp 2, ep 8 and 8 data-parallel ranks are 16 processes; a command without a number of nodes starts 8.",
          _launched),
    Claim("M4", "Automodel with rank 8: 4 GPUs take 8 sequences of 2048, 8 GPUs need about 14 GB for as many.", REFUTED,
          "14 GB is what one sequence takes. With 8 of them activations are five times the weights.",
          _automodel_sizes),
    Claim("M5", "NeMo RL: SFT with LoRA 256 on 8, GRPO with LoRA 128 on 16; high ranks need GPUs for their states.",
          REFUTED, "Both fit. The adapters that the recipe makes are so few that their states are under 1 GB a GPU.",
          _nemo_rl),
    Claim("M6", "Below 8192 tokens weights bind, above activations, which grow with the sequence.", REFUTED,
          "They do grow with the sequence, but pass the weights before 4096 tokens.", _regimes),
    Claim("M7", "8 H100, ep 8, rank 32: 15.8 GB and 3.0 GB for every 1024 tokens; 16384 tokens fit.", BY_ITS_RULE,
          "Activations grow with the sequence, as it says, but faster, logits and their gradient among them; 16384 "
          "tokens do not fit.", _by_length),
    Claim("M8", "Longer sequences: 32768 tokens with tp 2 on 16 GPUs, 65536 with tp 4 on 32; none on 8.", REFUTED,
          "Totals are half of what is there. And with etp 1 the layouts with tp are legal on 8 GPUs.", _longer),
    Claim("M9", "An fp8 KV cache halves the activations of attention.", REFUTED,
          "A training step has no KV cache.", _narrow_cache),
    Claim("M10", "Automodel with ep 4 on 4 GPUs at about 22 GB needs a run.", REFUTED,
          "It fits; gathered weights and logits are not in the 22 GB.", _four_gpus),
    Claim("M11", "Megatron-Bridge with ep 4 on 4 GPUs, in no recipe.", REPRODUCED, "It fits.", _bridge_on_four),
    Claim("M12", "Does the default target out_proj hit Mamba layers?", REPRODUCED,
          "In Megatron-Bridge yes, and the adapter is called as a module, so it learns.", _mamba_targets),
    Claim("M13", "328 TFLOP/s a GPU in pretraining are the only anchor of speed.", REPRODUCED,
          "Simulated from the recipe; the step is among the rows that shares were fitted on.", _benchmark),
    Claim("M14", "What an fp8 cache saves is to be counted.", REFUTED, "In training nothing.", _narrow_cache),
    Claim("M15", "No recipe beyond 2048 tokens has been run.", UNTESTABLE, "A statement on recipes; see M8.", tuple),
    Claim("M16", "31.6 B parameters, 52 layers, 2688 wide; 128 experts of 1856, 6 for a token; 262,144 tokens at most.",
          REPRODUCED, "The published configuration says so.", _architecture),
    Claim("M17", "LoRA never on Mamba's out_proj: a fused kernel reads its weight.", REFUTED,
          "By framework: Megatron's training path calls the module.", _safe_targets),
    Claim("M18", "93 % of the weights are routed experts: 58.75 of 63.16 GB.", REPRODUCED,
          "Counted tensor by tensor.", _shares),
    Claim("M19", "Megatron, rank 32: 63.2, 19.1, 11.8 and 9.6 GB of weights on 1, 4, 8 and 16 GPUs; 1 GPU does not "
    "fit.",
          REFUTED, "Weights are right. Totals leave out overhead that it lists elsewhere, and what activations take; "
          "a card of 80 GB gives a program more than that (X5), so one GPU does hold it, at one sequence.",
          _by_gpus_of_bridge),
    Claim("M20", "Automodel, rank 8: 15.8, 15.2 and 7.9 GB of weights on 4 GPUs with ep 4, 8 with ep 4, 8 with ep 8.",
          BY_ITS_RULE, "With ep 4 on 8 ranks the experts are cut again over the two ranks that hold the same ones.",
          _by_gpus_of_automodel),
    Claim("M21", "12 bytes a trained parameter, 2 to 4 GB of overhead.", REFUTED,
          "Bridge keeps fp32 gradients and masters of adapters: 18 bytes. The overhead is so.", _components_of_a_gpu),
    Claim("M22", "Adapters: 220 M at rank 8, 883 M at 32, 3.5 B at 128, 7.1 B at 256.", BY_ITS_RULE,
          "The figures count an adapter for every routed expert. Automodel's matcher skips grouped experts, and "
          "Bridge makes one adapter a rank and grouped matrix.", _adapters),
    Claim("M23", "Routed experts take 7.3 GB a GPU with ep 8, 14.7 with ep 4, and only ep can distribute them.",
          REFUTED,
          "FSDP2 cuts them without any ep.", _experts_on_a_gpu),
    Claim("M24", "Full on 16: 11.8 of weights, 23.6 of states, 11.8 of gradients, 56 in all; LoRA 22.", REFUTED,
          "Weights and states are right. Gradients are fp32, 23.5 GB; and adapters are a thirtieth.", _columns),
    Claim("M25", "Weights of a GPU: 11.7 GB under Megatron on 8 with ep 8, 15.8 under Automodel on 4 with ep 4.",
          REPRODUCED, "Megatron keeps everything but experts whole on each rank, Automodel cuts it.",
          _weights_of_two_frameworks),
    Claim("M26", "ep divides the ranks; experts are cut, adapters replicated.", REFUTED,
          "The rules of the mesh are so; adapters are cut like everything else.", _rules_of_the_mesh),
    Claim("M27", "8192 tokens: 24.5 GB of activations, 0.1 GB of embeddings and the rest.", REFUTED,
          "Logits of 131,072 words alone are 2.1 GB in bf16, as much again for their gradient.", _by_layer_kind),
    Claim("M28", "Bridge's calculator is 8 times too high without ep, 35 times without LoRA.", REFUTED,
          "Without ep it is 7 times what rests on a GPU; and against the adapters that are made it is 900 times.",
          _calculator),
    Claim("M29", "Paths to read again at each release.", UNTESTABLE, "No figure.", tuple),
)
