"""Document A, layouts of LoRA on Nemotron 3 Nano over H100 80 GB: M1 to M11."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from claims.asked import (
    FLEX,
    at_rest_gb,
    fewest,
    kept_gb,
    peak_gb,
    ran,
    scenario,
    sized,
    step_s,
    verdict,
    yes,
)
from claims.claim import BY_ITS_RULE, REFUTED, REPRODUCED, Claim, Figure
from simcore.inputs.loading import load
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report
from simcore.simulate import check

__all__ = ["CLAIMS", "SERVED", "asked_of_bridge", "automodel", "bridge", "nemo_rl", "slower_with_ep_4", "total"]

GRPO: Final = Path(__file__).resolve().parents[2] / "scenarios" / "nano-grpo" / "lora-16gpu.yaml"
SERVED: Final = GRPO.with_name("serve.yaml")
BRIDGE: Final[dict[str, Any]] = {"method": "lora", "lora": {"rank": 32, "alpha": 32}, "global_batch_size": 128}
AUTOMODEL: Final[dict[str, Any]] = {"method": "lora", "optimizer": {"name": "adam"},
                                    "lora": {"rank": 8, "alpha": 32, "exclude_modules": ["*.out_proj"]}}
RL_TARGETS: Final = ["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"]
AXIS: Final = "ctx + 4*nccl + libs"
"""Outside the allocator with tp: communicators of data, tensor, expert and data with tensor parallelism."""


def asked_of_bridge(mesh: dict[str, int], **given: Any) -> Scenario:
    """LoRA of rank 32 by Megatron-Bridge's recipe."""
    return scenario("megatron", {"etp": 1, **mesh}, options=FLEX, **BRIDGE | given)


def bridge(mesh: dict[str, int], **given: Any) -> Report:
    """Report of LoRA of rank 32 by Megatron-Bridge's recipe."""
    return ran(asked_of_bridge(mesh, **given))


def automodel(mesh: dict[str, int], **given: Any) -> Report:
    """Report of LoRA of rank 8 by Automodel's recipe."""
    return ran(scenario("automodel", mesh, **AUTOMODEL | given))


def nemo_rl(gpus: int, rank: int, implementation: str = "auto") -> Report:
    """Report of NeMo RL's SFT with LoRA: FSDP2, everything in fp32, all linears but out_proj."""
    return ran(scenario("fsdp2", {"dp_shard": gpus}, implementation=implementation, method="lora",
                        precision={"params": "fp32"}, optimizer={"name": "adamw"},
                        lora={"rank": rank, "alpha": 512, "target_modules": RL_TARGETS, "dtype": "fp32"}))


def total(tokens: int, weights: str = "2*(X/8 + D)", kept: str = "KM + 10*V",
          outside: str = "ctx + nccl + libs") -> str:
    """Peak of LoRA 32 under Megatron by hand: weights, adapters, what layers and the loss keep of tokens, the rest."""
    return f"frag*({weights} + 6*AM*32 + {tokens}*({kept})) + {outside}"


def _cut(tp: int) -> str:
    """Kept of a token where tp cuts it; LoRA keeps the gathered input of each layer beside its part."""
    return f"KM/{tp} + 52*2*2688 + 10*V/{tp}"


def _full(gpus: int, **given: Any) -> Report:
    return ran(scenario("megatron", {"dp_shard": gpus, "ep": min(gpus, 8), "etp": 1}, options=FLEX, **given))


def _full_automodel(gpus: int, **given: Any) -> Report:
    return ran(scenario("automodel", {"dp_shard": gpus, "ep": min(gpus, 8)}, optimizer={"name": "adam"}, **given))


# ---- tables of layouts ----------------------------------------------------------------------------------------------
def _at_a_glance() -> Sequence[Figure]:
    rl = {"precision": {"params": "fp32"}}
    (grpo,) = load(GRPO)
    return [
        Figure("Megatron-Bridge, LoRA: fewest GPUs (1, 2, 4, 8)", 8.0,
               fewest(lambda n: bridge({"dp_shard": n, "ep": n}), (1, 2, 4, 8)), "1", False, decides=True),
        Figure("one of them: a GPU", None, peak_gb(bridge({"dp_shard": 1})), total(2048, "2*(X + D)", outside="ctx"),
               None, unit="GB"),
        Figure("Megatron-Bridge, full SFT: fewest GPUs (4, 8, 16)", 16.0, fewest(_full, (4, 8, 16)), "16"),
        Figure("Automodel, LoRA: fewest GPUs (1, 2, 4)", 4.0,
               fewest(lambda n: automodel({"dp_shard": n, "ep": n}), (1, 2, 4)), "1", False, decides=True),
        Figure("Automodel, full SFT on 8", "fits", verdict(_full_automodel(8)), "fits"),
        Figure("Automodel, full SFT on 4", None, verdict(_full_automodel(4)), "unsure", None),
        Figure("NeMo RL, SFT with LoRA 256 on 8", "fits", verdict(nemo_rl(8, 256)), "fits"),
        Figure("NeMo RL, full SFT: fewest GPUs (4, 8, 16)", 16.0,
               fewest(lambda n: _full_automodel(n, **rl), (4, 8, 16)), "8", False, decides=True),
        Figure("NeMo RL, GRPO with LoRA 128 on 16", "fits", verdict(ran(grpo)), "fits"),
    ]


def _bridge_sizes() -> Sequence[Figure]:
    eight = "2*(X/8 + D/2)"
    return [
        Figure("8 GPUs, 2048 tokens, 8 sequences", "fits", verdict(sized("bridge-min-lora")[1]), "does not fit", False,
               decides=True),
        Figure("the same: a GPU", None, peak_gb(sized("bridge-min-lora")[1]), total(16384), None, unit="GB"),
        Figure("full, 16 GPUs, 2048 tokens, 4 sequences", "fits", verdict(sized("bridge-min-sft")[2]), "does not fit",
               False, decides=True),
        Figure("16 GPUs, tp 2, 2048 tokens, 16 sequences", "fits", verdict(sized("bridge-recommended-lora")[1]),
               "does not fit", False, decides=True),
        Figure("the same: a GPU", None, peak_gb(sized("bridge-recommended-lora")[1]),
               total(32768, eight, _cut(2), AXIS), None, unit="GB", share=0.035),
        Figure("16 GPUs, tp 2, 8192 tokens, 2 sequences", "fits", verdict(sized("bridge-long-lora-8k")[0]), "fits"),
        Figure("8192 tokens, 2 sequences, without tp 2", "does not fit",
               verdict(bridge({"dp_shard": 16, "ep": 8}, seq_len=8192, micro_batch_size=2)), "does not fit"),
        Figure("32 GPUs, tp 4, 32768 tokens, 1 sequence", "fits", verdict(sized("bridge-long-lora-32k")[0]), "fits")]


def _launched() -> Sequence[Figure]:
    mesh = {"dp_shard": 4, "tp": 2, "ep": 8}
    given = {"seq_len": 8192, "global_batch_size": 64}
    legal = check(asked_of_bridge(mesh, **given)).status == "ok"
    return [Figure("8 processes with tp 2 and ep 8, as the command says, are legal", "yes", yes(legal), "yes"),
            Figure("they hold 8192 tokens, for which 16 GPUs are named", "no",
                   yes(verdict(bridge(mesh, **given)) == "fits"), "yes", False, decides=True),
            Figure("a GPU of the 8", None, peak_gb(bridge(mesh, **given)),
                   total(8192, "2*(X/8 + D/2)", _cut(2), AXIS), None, unit="GB", share=0.03)]


def _automodel_sizes() -> Sequence[Figure]:
    hand = "frag*(2*X/8 + 2*D + 2*D/8 + 16384*(KA + 12*V)) + ctx + nccl"
    four = "frag*(2*X/4 + 2*D + 2*D/4 + 16384*(KA + 12*V)) + ctx + nccl"
    return [Figure("4 GPUs, ep 4, 2048 tokens, 8 sequences", "fits", verdict(sized("automodel-min-lora")[0]), "unsure",
                   None),
            Figure("the same: a GPU", None, peak_gb(sized("automodel-min-lora")[0]), four, None, unit="GB"),
            Figure("8 GPUs, ep 8, 2048 tokens, 8 sequences: a GPU", 14.0,
                   peak_gb(sized("automodel-recommended-lora")[0]), hand, False, unit="GB", decides=True),
            Figure("8 GPUs, ep 8, 8192 tokens, 2 sequences", "fits", verdict(sized("automodel-long-lora-8k")[0]),
                   "unsure", None),
            Figure("8 GPUs, ep 8, 16384 tokens, 1 sequence", "fits", verdict(sized("automodel-long-lora-16k")[0]),
                   "unsure", None)]


def _nemo_rl() -> Sequence[Figure]:
    """The recipes as they stand: fp32, no expert parallelism for LoRA, ep 8 for full SFT."""
    (grpo,) = load(GRPO)
    native, hub = nemo_rl(8, 256), nemo_rl(8, 256, "hub")
    full = ran(scenario("automodel", {"dp_shard": 16, "ep": 8}, precision={"params": "fp32"}, optimizer={
        "name": "adamw", "implementation": "for_loop"}, options={"defer_fsdp_grad_sync": False}))
    return [Figure("SFT with LoRA 256 on 8", "fits", verdict(native), "fits"),
            Figure("the same with the Hub's layers", "fits", verdict(hub), "fits"),
            Figure("SFT with LoRA 256 on 8, transformers' layers: a GPU", None, peak_gb(native),
                   "frag*(4*(X + D)/8 + 16*AA*256/8 + 2048*(3924040 + 12*V) + 2*(X + S)/23 + 2*E) + ctx + nccl", None,
                   unit="GB"),
            Figure("full SFT on 16", "fits", verdict(full), "fits"),
            Figure("full SFT on 16: states and weights of a GPU", None, at_rest_gb(full), "16*(X + D)/16", None,
                   unit="GB"),
            Figure("GRPO with LoRA 128 on 16", "fits", verdict(ran(grpo)), "fits"),
            Figure("ranks of 256 need 16 GPUs for their states", "yes",
                   yes(verdict(native) != "fits" or verdict(hub) != "fits"), "no", False, decides=True),
            Figure("states of rank 256 on one of 8, transformers' layers", None, at_rest_gb(native, "optimizer_bytes"),
                   "8*AA*256/8", None, unit="GB"),
            Figure("the same with the Hub's layers, an adapter for every expert", None,
                   at_rest_gb(hub, "optimizer_bytes"), "8*(AA + AE)*256/8", None, unit="GB")]


def _regimes() -> Sequence[Figure]:
    @cache
    def step(seq_len: int) -> float:
        return peak_gb(bridge({"dp_shard": 8, "ep": 8}, seq_len=seq_len))

    a_token = (step(8192) - step(1024)) / 7168
    weights = at_rest_gb(bridge({"dp_shard": 8, "ep": 8}), "params_bytes")
    return [Figure("tokens at which a step adds as much as the weights", 8192.0, weights / a_token,
                   "2*(X/8 + D)/(frag*(KM + 10*V))", False, decides=True),
            Figure("weights and adapters", None, weights, "2*(X/8 + D + AM*32)", None, unit="GB"),
            Figure("what 4096 tokens more add, of what 3072 after the first 1024 did", 4 / 3,
                   (step(8192) - step(4096)) / (step(4096) - step(1024)), "4/3")]


def _by_length() -> Sequence[Figure]:
    published = (18.9, 22.0, 28.1, 40.3, 64.8, 113.8)
    reports = sized("bridge-lora-by-length")
    lengths = (1024, 2048, 4096, 8192, 16384, 32768)
    totals = [Figure(f"{length} tokens", told, peak_gb(report), total(length), False, unit="GB", share=0.035,
                     rule=f"15.8e9 + {length}*24.5e9/8192", decides=length > 1024, within=0.01)
              for told, report, length in zip(published, reports, lengths, strict=True)]
    return [*totals, Figure("16384 tokens", "fits", verdict(reports[4]), "does not fit", False)]


def _longer() -> Sequence[Figure]:
    reports = sized("bridge-lora-longer")
    two, four = ("2*(X/8 + D/2)", "2*(X/8 + D/4)")
    rows = (("16384, tp 1", 64.8, total(16384)), ("32768, tp 2", 62.0, total(32768, two, _cut(2), AXIS)),
            ("32768, tp 4", 36.1, total(32768, four, _cut(4), AXIS)),
            ("65536, tp 4", 60.9, total(65536, four, _cut(4), AXIS)),
            ("65536, tp 4, cp 2", 36.0, total(32768, four, _cut(4), "ctx + 7*nccl + libs")))
    totals = [Figure(f"tokens {shape}", told, peak_gb(report), hand, False, unit="GB", share=0.035, decides=True)
              for (shape, told, hand), report in zip(rows, reports, strict=True)]
    return [*totals, Figure("32768, tp 4 on one node of 8", "does not fit", verdict(sized("bridge-lora-fewer-gpus")[1]),
                            "fits", False, decides=True)]


def _keys_and_values() -> Sequence[Figure]:
    asked = asked_of_bridge({"dp_shard": 8, "ep": 8}, seq_len=8192)
    pair = kept_gb(asked, "attention", "key_contiguous", "value_contiguous")
    one, half = (ran(load(SERVED)[number]).serving for number in (0, 1))
    assert one is not None
    assert half is not None
    return [Figure("half of the keys and values, of what attention keeps for backward", 50.0,
                   100 * pair / 2 / kept_gb(asked, "attention"), "100*512/28420", False, unit="%", decides=True),
            Figure("attention, of what all layers keep", None,
                   100 * kept_gb(asked, "attention") / sum(kept_gb(asked, kind) for kind in (
                       "moe", "mamba", "attention")), "100*6*28420/KM", None, unit="%"),
            Figure("attention layers: kept of 8192 tokens", None, kept_gb(asked, "attention"), "8192*6*28420", None,
                   unit="GB"),
            Figure("serving: an fp8 cache, of the bytes a token", 0.5,
                   half.kv_bytes_per_token / one.kv_bytes_per_token, "1/2")]


def _four_gpus() -> Sequence[Figure]:
    report = sized("automodel-lora-by-gpus")[0]
    return [Figure("4 GPUs, ep 4", "fits", verdict(report), "fits"),
            Figure("a GPU", 22.0, peak_gb(report),
                   "frag*(2*X/4 + 2*D + 2*D/4 + 2048*(KA + 12*V)) + ctx + nccl", False, unit="GB", decides=True)]


def _bridge_on_four() -> Sequence[Figure]:
    report = sized("bridge-lora-by-gpus")[1]
    return [Figure("Megatron-Bridge, ep 4 on 4 GPUs", "fits", verdict(report), "fits", decides=True),
            Figure("a GPU", None, peak_gb(report), total(2048, "2*(X/4 + D)"), None, unit="GB")]


def slower_with_ep_4() -> Sequence[Figure]:
    """Throughput and memory of ep 4 against ep 8 on 8 GPUs, one sequence of 2048 tokens a GPU."""
    def asked(ep: int) -> Scenario:
        return scenario("automodel", {"dp_shard": 8, "ep": ep}, **AUTOMODEL)

    return [Figure("8 GPUs: ep 4 is faster than ep 8", "yes", yes(step_s(asked(4)) < step_s(asked(8))), "no", False),
            Figure("8 GPUs: ep 4 needs more than ep 8", None, peak_gb(ran(asked(4))) - peak_gb(ran(asked(8))),
                   "frag*2*X/4 + nccl", None, unit="GB")]


CLAIMS: tuple[Claim, ...] = (
    Claim("M1", "Fewest H100: Megatron-Bridge 8 for LoRA and 16 for full fine-tuning, Automodel 4 and 8, NeMo RL 8 and "
          "16, GRPO 16.", REFUTED,
          "Every named number of GPUs does fit one sequence of 2048 tokens, but for LoRA one GPU is enough, and NeMo "
          "RL's full fine-tuning fits on 8 (upstream has such a recipe too). Megatron's full fine-tuning needs 16.",
          _at_a_glance),
    Claim("M2", "Largest micro-batches under Megatron-Bridge: 8 and 4 sequences of 2048 on 8 and 16 GPUs, 16 with tp "
          "2; 8192 tokens need tp 2, 32768 need tp 4.", REFUTED,
          "Twice what fits at 2048 tokens: activations of a token are about twice the table's, and logits of 131,072 "
          "words are left out there. tp 2 at 8192 tokens and tp 4 at 32768 are right.", _bridge_sizes),
    Claim("M3", "torchrun commands of 8 processes, one of them for long context, for which 16 GPUs are named.", REFUTED,
          "The command is legal as it stands: with etp 1, tp 2 and ep 8 need 8 processes (X11), and these hold 8192 "
          "tokens. The 16 GPUs beside it are not needed.", _launched),
    Claim("M4", "Automodel with rank 8: 4 GPUs take 8 sequences of 2048, 8 GPUs need about 14 GB for as many.", REFUTED,
          "14 GB is less than one sequence takes (M10, M20). With 8 of them activations and the loss are eight times "
          "the weights. On 4 GPUs the band crosses the limit; on 8 at 8192 and 16384 tokens it does on a rank with "
          "more than the mean of them.", _automodel_sizes),
    Claim("M5", "NeMo RL: SFT with LoRA 256 on 8 or 16, full SFT on 16, GRPO with LoRA 128 on 16; high ranks need "
          "GPUs for their states.", REFUTED,
          "All fit, in fp32 as the recipes load it. States do not ask for 16 GPUs: they are small with transformers' "
          "grouped experts, and where the Hub's code has a linear for every expert, 8 GPUs hold them too. NeMo RL's "
          "LoRA recipes set `force_hf` and load the Hub's code.", _nemo_rl),
    Claim("M6", "Below 8192 tokens weights bind, above activations, which grow with the sequence.", REFUTED,
          "They do grow with the sequence, but pass the weights before 4096 tokens.", _regimes),
    Claim("M7", "8 H100, ep 8, rank 32: 15.8 GB and 3.0 GB for every 1024 tokens; 16384 tokens fit.", BY_ITS_RULE,
          "Activations grow with the sequence, as it says, but faster, logits and their gradient among them; 16384 "
          "tokens do not fit.", _by_length),
    Claim("M8", "Longer sequences: 32768 tokens with tp 2 on 16 GPUs, 65536 with tp 4 on 32; none on 8.", REFUTED,
          "Totals are half of what is there. And with etp 1 the layouts with tp are legal on 8 GPUs.", _longer),
    Claim("M9", "An fp8 KV cache halves the activations of attention.", REFUTED,
          "A training step has no KV cache. Even if keys and values were kept in 8 bits for backward, attention would "
          "keep almost as much, because two heads of 32 are keys and values. In serving the cache does halve.",
          _keys_and_values),
    Claim("M10", "Automodel with ep 4 on 4 GPUs at about 22 GB needs a run.", REFUTED,
          "It fits; gathered weights and logits are not in the 22 GB.", _four_gpus),
    Claim("M11", "Megatron-Bridge with ep 4 on 4 GPUs: memory fits, in no recipe.", REPRODUCED, "It fits.",
          _bridge_on_four),
)
