"""What DeepSpeed's ZeRO-3 gathers and reduces of experts that are modules, at every call of a module, on one CPU.

    PYTHONPATH=TRANSFORMERS_4 python tests/truth/probe_zero_experts.py CHECKOUT HUB \
        > tests/truth/deepspeed/experts-0.19.6.json

CHECKOUT and process group: as `probe_deepspeed.py`; TRANSFORMERS_4: as `probe_experts.py`; HUB: a folder with
`modeling_nemotron_h.py` and `configuration_nemotron_h.py` of Nemotron-3-Nano's repository, of which blocks of attention
and of experts run (Mamba's kernels are of CUDA). Every expert gets its even share of rows. `fetched`: of the fourth
microbatch, as `probe_zero_fetched.py` has it, every call; `calls`: every collective of that microbatch in order, with
bytes and dtype; `parts`: elements of each parameter's part.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from contextlib import nullcontext
from typing import Any

import probe_zero_qlora
import torch
from json_lines import with_cases
from oracle.apart import run_apart
from oracle.zero3_calls import watch

EXPERTS, TOP_K, TOKENS = 4, 2, 8
SHAPE = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512,
         "num_experts_per_tok": TOP_K, "max_position_embeddings": 4096, "num_hidden_layers": 5}
QWEN = {"model_type": "qwen3_moe", "moe_intermediate_size": 128, "intermediate_size": 512, "num_experts": EXPERTS,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, **SHAPE}
MIXTRAL = {"model_type": "mixtral", "intermediate_size": 128, "num_local_experts": EXPERTS, "sliding_window": None,
           **SHAPE}
NEMOTRON = {"model_type": "nemotron_h", "hybrid_override_pattern": "E*E*E", "n_routed_experts": EXPERTS,
            "intermediate_size": 128, "moe_intermediate_size": 128, "moe_shared_expert_intermediate_size": 256,
            "n_shared_experts": 1, "n_groups": 2, "tie_word_embeddings": False, **SHAPE}
LIMITS = {"reduce_bucket_size": 300_000, "overlap_comm": False, "stage3_prefetch_bucket_size": 300_000,
          "stage3_max_live_parameters": 3_000_000, "stage3_max_reuse_distance": 3_000_000,
          "stage3_param_persistence_threshold": 1_000}
"""A block of experts has 394,000 elements, attention 197,000."""
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = {"qwen3_moe": [*ATTENTION, "gate_proj", "up_proj", "down_proj"], "mixtral": [*ATTENTION, "w1", "w2", "w3"],
       "nemotron_h": [*ATTENTION, "up_proj", "down_proj"]}
MODELS = {"qwen3": QWEN, "mixtral": MIXTRAL, "nemotron": NEMOTRON}
METHODS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"}, "lora": {"method": "lora", "targets": ATTENTION},
    "lora of experts": {"method": "lora", "targets": "all"},
    "dora": {"method": "lora", "targets": "all", "dora": True}, "qlora": {"method": "qlora", "targets": ATTENTION},
    "qlora of experts": {"method": "qlora", "targets": "all"}}


def case(name: str, method: dict[str, Any], *, checkpoint: bool, **options: Any) -> dict[str, Any]:
    model = MODELS[name]
    targets = method.get("targets")
    return {"model": model, "recompute": checkpoint, "options": LIMITS | options} | method | (
        {"targets": ALL[model["model_type"]]} if targets == "all" else {})


def both(name: str, method: str, what: str = "", **options: Any) -> dict[str, dict[str, Any]]:
    return {f"{name}, {what or method}{', replayed' if on else ''}": case(
        name, METHODS[method], checkpoint=on, **options) for on in (False, True)}


CASES = {
    **both("qwen3", "full"), **both("nemotron", "full"), **both("qwen3", "qlora of experts"),
    **both("nemotron", "qlora of experts"), **both("nemotron", "lora"), **both("qwen3", "lora"),
    **both("mixtral", "qlora of experts"), **both("nemotron", "qlora"), **both("qwen3", "qlora"),
    **both("nemotron", "lora of experts"), **both("qwen3", "lora of experts"),
    **both("nemotron", "full", "no reuse", stage3_max_reuse_distance=0),
    **both("nemotron", "full", "few live", stage3_max_live_parameters=900_000),
    **both("qwen3", "full", "far ahead", stage3_prefetch_bucket_size=1_200_000),
    **both("qwen3", "full", "few live", stage3_max_live_parameters=900_000),
    **both("nemotron", "dora", "dora, one by one", stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=0)}


def even(rows: int) -> torch.Tensor:
    """Numbers of experts: each has as many rows."""
    return torch.stack([(torch.arange(rows) + i * EXPERTS // TOP_K) % EXPERTS for i in range(TOP_K)], 1)


def balance() -> None:
    """torch.topk gives every expert its share."""
    chosen = torch.topk

    def choose(x: torch.Tensor, *given: Any, **named: Any) -> Any:
        values, indices = chosen(x, *given, **named)
        if indices.shape == (TOKENS, TOP_K):
            indices.data.copy_(even(TOKENS))
        return values, indices
    torch.topk = choose


def of_hub(fields: dict[str, Any]) -> Any:
    """The repository's model; its Mamba kernels are stand-ins that never run."""
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.ops.triton.layernorm_gated"):
        sys.modules.setdefault(name, types.ModuleType(name)).__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules["mamba_ssm.ops.triton.layernorm_gated"].rmsnorm_fn = None  # type: ignore[attr-defined]
    torch.cuda.default_stream, torch.cuda.stream = (lambda device: None), (lambda stream: nullcontext())
    package = types.ModuleType("hub")
    package.__path__ = [sys.argv[2]]
    sys.modules["hub"] = package
    config = importlib.import_module("hub.configuration_nemotron_h").NemotronHConfig(**fields)
    config._attn_implementation = "eager"  # which calls SDPA too
    return importlib.import_module("hub.modeling_nemotron_h").NemotronHForCausalLM(config).to(torch.bfloat16)


def plain(fields: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM
    fields = dict(fields)
    kind = fields.pop("model_type")
    if kind == "nemotron_h":
        return of_hub(fields)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields), dtype=torch.bfloat16,
                                            attn_implementation="sdpa")


def packed(model: Any) -> Any:
    import bitsandbytes as bnb
    import probe_qlora
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import get_keys_to_not_convert, replace_with_bnb_linear
    bnb.autograd._functions.torch = type("torch", (), {**vars(torch), "ops": probe_qlora.Ops})
    weights = {n: p.data for n, p in model.named_parameters()}
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                bnb_4bit_compute_dtype=torch.bfloat16)
    model = replace_with_bnb_linear(model, get_keys_to_not_convert(model), quantization_config=config)
    for name, part in model.named_modules():
        if isinstance(part, bnb.nn.Linear4bit):
            part.weight = bnb.nn.Params4bit(weights[f"{name}.weight"], requires_grad=False, compress_statistics=True,
                                            quant_type="nf4", module=part).to("cpu")
    model.is_loaded_in_4bit = True  # what PEFT asks for
    return model


def built(row: dict[str, Any]) -> Any:
    import peft
    model = plain(row["model"])
    inner = model = packed(model) if row["method"] == "qlora" else model
    if row["method"] != "full":
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=row["targets"],
                                                           use_dora=row.get("dora", False)))
        for p in model.parameters():
            p.data = p.data.to(torch.bfloat16) if p.requires_grad else p.data
    if row["recompute"]:
        inner.gradient_checkpointing_enable({"use_reentrant": False})
        if row["method"] != "full":
            inner.enable_input_require_grads()
    return model.train()


def run(row: dict[str, Any]) -> dict[str, Any]:
    import deepspeed
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    balance()
    torch.Tensor.__repr__ = lambda self: ""  # type: ignore[method-assign]  # DeepSpeed writes every parameter
    torch.nn.Parameter.__repr__ = lambda self: ""  # type: ignore[method-assign]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    torch.manual_seed(0)
    fetched: list[list[int]] = []
    model = built(row)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(trained, fused=True), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 3, **row["options"]}})
    watch(fetched)
    for _ in range(4):
        fetched.clear()
        probe_zero_qlora.CALLS.clear()
        tokens = torch.randint(0, row["model"]["vocab_size"], (1, TOKENS))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        calls = list(probe_zero_qlora.CALLS)
        engine.step()
    return {"fetched": fetched, "calls": calls, "parts": [p.ds_tensor.numel() for p in engine.module.parameters()]}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    probe_zero_qlora.prepare()
    rows = run_apart({name: row for name, row in CASES.items() if not sys.argv[3:] or name in sys.argv[3:]}, run)
    print(with_cases({"deepspeed": "0.19.6 edaa72212"}, rows, compact=True, indent=" "))


if __name__ == "__main__":
    main()
