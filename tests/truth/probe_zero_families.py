"""Measures ZeRO-2's and ZeRO-3's messages where norms stand behind blocks, or blocks side by side, on one CPU.

    python tests/truth/probe_zero_families.py > tests/truth/deepspeed/families-0.19.6.json
    python tests/truth/probe_zero_families.py drawn > tests/truth/deepspeed/drawn-families-0.19.6.json

DeepSpeed 0.19.6 as released, with transformers 5.23.0; the process group is torch's fake one. `microbatches`: each
collective of the last step's passes with its bytes, the ranks of its group and how often it comes in a row; `fetched`:
what ZeRO-3 has gathered after every call of a module in the last of them, as in `probe_zero_fetched.py`. Limits of
ZeRO-3 are made small, so that it gathers and releases within a layer. Mamba's kernel, which makes all of a mixer but
its first product, is a stand-in that reads the weights which the kernel reads, and returns a product with the last.
`drawn`: cases by a seed, none of which is drawn again because of what came out.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys

import probe_deepspeed as base
from json_lines import with_cases
from oracle.apart import run_apart
from oracle.zero3_calls import watch
from probe_zero_sequences import counted, kept

SEED, COUNT = 20261130, 56
PLAIN = base.LLAMA | {"num_hidden_layers": 3, "num_key_value_heads": 2}
WINDOW = {"sliding_window": 16}
FAMILIES = {
    "gemma2": WINDOW, "gemma3_text": WINDOW | {"sliding_window_pattern": 2},
    "gemma4_text": WINDOW | {"num_global_key_value_heads": 2, "global_head_dim": 64, "attention_k_eq_v": True,
                             "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": False},
    "glm4": {"attention_bias": False}, "olmo2": {"attention_bias": False}, "olmo3": WINDOW | {"attention_bias": False},
    "cohere2": WINDOW | {"sliding_window_pattern": 2, "attention_bias": False},
    "phi": {"num_key_value_heads": 4, "resid_pdrop": 0.0, "partial_rotary_factor": 0.5},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_ssm": 256, "mamba_n_groups": 1, "mamba_d_state": 16,
                  "mamba_chunk_size": 16, "mamba_rms_norm": False},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_chunk_size": 16,
              "attn_layer_indices": [1]},
    "nemotron_h": {"hybrid_override_pattern": "M-*M", "num_hidden_layers": 4, "mamba_num_heads": 8,
                   "mamba_head_dim": 32, "n_groups": 1, "ssm_state_size": 16, "chunk_size": 16},
}
RECURRENT = ("falcon_h1", "bamba", "nemotron_h", "granitemoehybrid", "mamba2")
TIED = ("gemma2", "gemma3_text", "gemma4_text", "cohere2")
NEAR = {"reduce_bucket_size": 300_000, "overlap_comm": False}
FAR = NEAR | {"stage3_prefetch_bucket_size": 200_000, "stage3_param_persistence_threshold": 1_000,
              "stage3_max_reuse_distance": 1_000_000, "stage3_max_live_parameters": 3_000_000}
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
OTHERS = {"glm4": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
          "phi": ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
          "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")}


def case(stage, kind, *, checkpoint=True, targets=(), ranks=4, steps=2, options=None, **model):
    own = FAR if stage == 3 else NEAR
    sizes = PLAIN | {"tie_word_embeddings": kind in TIED} | FAMILIES[kind] | model
    if kind in ("cohere2", "phi", "olmo2"):  # heads of the width over their number
        del sizes["head_dim"]
    return {"stage": stage, "type": kind, "model": sizes, "ranks": ranks, "rank": 0, "checkpoint": checkpoint,
            "attn_implementation": "eager" if kind == "gemma2" else "sdpa", "targets": list(targets), "steps": steps,
            "options": own | (options or {})}


CASES = {
    **{f"{word}, {kind}{how}": case(stage, kind, checkpoint=not how) for kind in FAMILIES
       for stage, word in ((2, "two"), (3, "three")) for how in ("", ", plain")},
    **{f"three, {kind}, all gathered{how}": case(3, kind, checkpoint=not how, options={
        "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0})
       for kind in FAMILIES if kind != "nemotron_h" for how in ("", ", plain")},  # its layers read their norm's type
    **{f"three, {kind}, lora{how}": case(3, kind, checkpoint=not how, targets=OTHERS.get(kind, LINEARS))
       for kind in FAMILIES for how in ("", ", plain")},
}


def drawn():
    """Stages, families, ranks, heads, widths, layers, buckets, what is prefetched and stays, adapters."""
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        kind, stage = rng.choice(tuple(FAMILIES)), rng.choice((2, 3, 3))
        keys = rng.choice((1, 2))
        heads = keys * rng.choice((2, 3))
        sizes = {"hidden_size": heads * 64, "num_attention_heads": heads,
                 "num_key_value_heads": heads if kind == "phi" else keys,
                 "intermediate_size": rng.choice((300, 512, 700)), "num_hidden_layers": rng.choice((1, 2, 3, 5)),
                 "vocab_size": rng.choice((1_000, 3_001, 4_000))}
        if kind in ("falcon_h1", "bamba"):
            sizes |= {"mamba_n_heads": heads, "mamba_d_head": 64 * (1 + (kind == "bamba"))}
            sizes |= {"mamba_d_ssm": 64 * heads} if kind == "falcon_h1" else {}
        if kind == "bamba":
            sizes["attn_layer_indices"] = sorted(rng.sample(range(sizes["num_hidden_layers"]), 1))
        if kind == "nemotron_h":
            sizes["hybrid_override_pattern"] = "".join(rng.choice("M-*") for _ in range(sizes["num_hidden_layers"]))
        if kind == "gemma4_text":
            sizes["num_global_key_value_heads"] = keys
        options = {"reduce_bucket_size": rng.choice((100_000, 300_000, 1_000_000))}
        if stage == 3:
            options |= {"stage3_prefetch_bucket_size": rng.choice((0, 50_000, 200_000, 600_000)),
                        "stage3_param_persistence_threshold": rng.choice((0, 100, 1_000)),
                        "stage3_max_reuse_distance": rng.choice((0, 300_000, 1_000_000)),
                        "stage3_max_live_parameters": rng.choice((1_000_000, 3_000_000))}
        linears = OTHERS.get(kind, LINEARS)
        targets = rng.sample(linears, rng.randint(1, len(linears))) if rng.random() < 0.3 else ()
        found[f"f{number}"] = case(stage, kind, checkpoint=rng.random() < 0.5, ranks=rng.choice((2, 3, 4, 8)),
                                   steps=rng.choice((1, 2)), options=options, targets=sorted(targets), **sizes)
    return found


def put_in_place(kind):
    """The stand-in of Mamba's kernel, where a family has it."""
    if kind not in RECURRENT:
        return
    import torch

    class Fused(torch.autograd.Function):
        """Tensors in the order of mamba_ssm's MambaSplitConv1dScanCombinedFn, of which all gradients come at once."""

        @staticmethod
        def forward(ctx, projected, weight, bias, dt_bias, a, d, norm, out, out_bias):
            read = [weight, bias, dt_bias, a, d, norm, out, out_bias]
            ctx.save_for_backward(projected, *(x for x in read if x is not None))
            ctx.is_there = [x is not None for x in read]
            return torch.nn.functional.linear(projected[..., :out.shape[1]], out, out_bias)

        @staticmethod
        def backward(ctx, grad):
            projected, *read = map(torch.zeros_like, ctx.saved_tensors)
            return projected, *(read.pop(0) if is_there else None for is_there in ctx.is_there)

    def fused(projected, weight, bias, dt_bias, a, **given):
        return Fused.apply(projected, weight, bias, dt_bias, a, given["D"], given.get("rmsnorm_weight"),
                           given["outproj_weight"], given["outproj_bias"])

    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    module.mamba2_split_conv1d_scan_combined = fused


def started(row):
    """The engine and the configuration of its model."""
    import deepspeed
    import torch
    put_in_place(row["type"])
    model, config = base.model_of(row | {"model": row["model"] | {"pad_token_id": 0}})
    if row["targets"]:
        from peft import LoraConfig, get_peft_model
        if row["checkpoint"]:
            model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(r=8, target_modules=row["targets"]))
        model.to(torch.bfloat16)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(trained, fused=True), config={
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row["steps"], "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": row["stage"], **row["options"]}})
    return engine, config


def run(row):
    import torch
    engine, config = started(row)
    fetched = []
    if row["stage"] == 3:
        watch(fetched)
    found = {"kept": kept(engine.optimizer, row["stage"])}
    for _ in range(4):  # the order of modules is recorded by then
        found["microbatches"] = []
        for _ in range(row["steps"]):
            base.CALLS.clear()
            fetched.clear()
            tokens = torch.randint(0, config.vocab_size, (1, 32))
            engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
            found["microbatches"].append(counted(base.CALLS))
            engine.step()
    return found | ({"fetched": list(fetched)} if row["stage"] == 3 else {})


def main():
    asked = drawn() if sys.argv[1:2] == ["drawn"] else CASES
    if len(sys.argv) > 2:
        asked = {name: asked[name] for name in sys.argv[2:]}
    sys.argv[1:] = []
    base.SHARDED = True
    base.prepare()
    with contextlib.redirect_stdout(sys.stderr):
        rows = run_apart(asked, run)
    print(with_cases({"deepspeed": "0.19.6", "transformers": "5.23.0"}, rows, compact=True, indent=" "))


if __name__ == "__main__":
    main()
