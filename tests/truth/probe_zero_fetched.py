"""What DeepSpeed's ZeRO-3 has gathered at every call of a module, with and without checkpointing, on one CPU.

    python tests/truth/probe_zero_fetched.py CHECKOUT > tests/truth/deepspeed/fetched-0.19.6.json

CHECKOUT and process group: as `probe_deepspeed.py`; packed models: as `probe_zero_qlora.py`. Sequences of 4 tokens.
Models are Qwen2.5-3B and Qwen3-8B with fewer, shorter matrices, and the limits of ZeRO-3 made small with them: a layer
is 1.5 times what is prefetched, a thirteenth of what may be there and of the distance of reuse; the embedding is four
layers. `fetched`: of the sixth microbatch (its order is recorded by then), after every call of `fetch_sub_module`:
whether it is forward, elements that are gathered or on their way (`__n_available_params`), parameters in the registry
in flight, and bytes of the flat buffers out of which those are or were copied. Small parameters that stay are in none.
On a CPU PEFT's DoRA puts a weight that it has unpacked back into its module, as a new parameter: here it does not, as
on CUDA.
"""

from __future__ import annotations

import sys
from typing import Any

import probe_zero_qlora
from json_lines import with_cases
from oracle.apart import run_apart
from oracle.zero3_calls import watch

QWEN2 = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 20, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 8000, "tie_word_embeddings": True}
QWEN3 = QWEN2 | {"head_dim": 32, "tie_word_embeddings": False}
SHORT = QWEN3 | {"num_hidden_layers": 6}
GRANITE = QWEN2 | {"num_hidden_layers": 8, "layer_types": ["attention"] * 8, "num_local_experts": 4,
                   "num_experts_per_tok": 2, "shared_intermediate_size": 256, "position_embedding_type": "rope",
                   "mamba_n_heads": 8, "mamba_d_head": 32}
QWEN3_MOE = SHORT | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True,
                     "decoder_sparse_step": 1, "mlp_only_layers": []}
LLAMA = probe_zero_qlora.LLAMA | {"num_hidden_layers": 12}
LAYER = 246_000
"""Elements, about."""
LIMITS = {"reduce_bucket_size": 300_000, "overlap_comm": False, "stage3_prefetch_bucket_size": 2 * LAYER // 3,
          "stage3_max_live_parameters": 13 * LAYER, "stage3_max_reuse_distance": 13 * LAYER,
          "stage3_param_persistence_threshold": 1_000}
OF_BITS = {"stage3_prefetch_bucket_size": 300_000, "stage3_max_live_parameters": 5_000_000,
           "stage3_max_reuse_distance": 5_000_000}
"""Of a layer of 331,776 packed elements with its adapters, beside an embedding and a head of 1,024,000 each."""


def case(kind: str, model: dict[str, Any], method: str = "full", *, checkpoint: bool, dora: bool = False,
         **options: Any) -> dict[str, Any]:
    row = {"type": kind, "model": model, "method": method, "recompute": checkpoint, "options": LIMITS | options}
    return row | ({"dora": True} if dora else {})


def both(name: str, *given: Any, **options: Any) -> dict[str, dict[str, Any]]:
    return {f"{name}, {'replayed' if on else 'plain'}": case(*given, checkpoint=on, **options) for on in (False, True)}


CASES = {
    **both("qwen2", "qwen2", QWEN2), **both("qwen2, 21 layers", "qwen2", QWEN2 | {"num_hidden_layers": 21}),
    **both("qwen2, few live", "qwen2", QWEN2, stage3_max_live_parameters=6 * LAYER),
    **both("qwen2, far ahead", "qwen2", QWEN2, stage3_prefetch_bucket_size=4 * LAYER),
    **both("qwen2, lora", "qwen2", QWEN2, "lora"), **both("qwen3, dora", "qwen3", SHORT, "lora", dora=True),
    **both("qwen3, dora, one by one", "qwen3", SHORT, "lora", dora=True, stage3_max_reuse_distance=0,
           stage3_prefetch_bucket_size=0),
    **both("llama, qdora", "llama", LLAMA | {"num_hidden_layers": 4}, "qlora", dora=True, **OF_BITS),
    **both("llama, qlora", "llama", LLAMA, "qlora", **OF_BITS),
    **both("qwen3 moe", "qwen3_moe", QWEN3_MOE), **both("granite", "granitemoehybrid", GRANITE),
    **both("granite, far ahead", "granitemoehybrid", GRANITE, stage3_prefetch_bucket_size=4 * LAYER),
    **both("qwen3", "qwen3", QWEN3), **both("qwen3, 21 layers", "qwen3", QWEN3 | {"num_hidden_layers": 21}),
}


def built(row: dict[str, Any]) -> Any:
    import peft
    import probe_qlora
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    if row["method"] == "qlora":
        peft.tuners.lora.dora.dequantize_module_weight = lambda module: (
            peft.utils.integrations.dequantize_bnb_weight(module.weight))
        probe_zero_qlora.LLAMA = row["model"]
        return probe_zero_qlora.built(row)
    config = AutoConfig.for_model(row["type"], **row["model"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    if row["method"] == "lora":
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=probe_qlora.ALL,
                                                           use_dora=row.get("dora", False)))
        model.to(torch.bfloat16)
    inner = model.base_model.model if row["method"] == "lora" else model
    if row["recompute"]:
        inner.gradient_checkpointing_enable({"use_reentrant": False})
        if row["method"] == "lora":
            inner.enable_input_require_grads()
    return model.train()


def run(row: dict[str, Any]) -> dict[str, Any]:
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    fetched: list[list[int]] = []
    model = built(row)
    watch(fetched)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(trained, fused=True), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 3, **row["options"]}})
    for _ in range(6):
        fetched.clear()
        tokens = torch.randint(0, row["model"]["vocab_size"], (1, 4))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        engine.step()
    return {"fetched": fetched}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    probe_zero_qlora.prepare()
    rows = run_apart({name: row for name, row in CASES.items() if not sys.argv[2:] or name in sys.argv[2:]}, run)
    print(with_cases({"deepspeed": "0.19.6 edaa72212"}, rows, compact=True, indent=" "))


if __name__ == "__main__":
    main()
