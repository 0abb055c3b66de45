"""What torch's FullyShardedDataParallel keeps, sends and frees: small transformers models on one CPU.

Reads one case per line (JSON) from standard input. The process group is torch's fake one: collectives do nothing and
are noted with the bytes of their largest tensor. `units`: elements of every flat parameter, without the padding of
parts, and of a rank's part, root first; `step`: of the second step, in order, what is gathered, reduced and summed, and
when a unit's whole parameters come (`+`) and go (`-`), with the number of the unit; `grads`: dtypes of the gradients
that rest. `refused`: the message, where torch does not make it. With `lora` (rank, modules) PEFT adapts the model first
(with `storage` bitsandbytes packs its linears in 4 bits before, stored in that type, and all is bf16: then `step` is
there too, and `constants`: bytes of all quantisation constants); then `rest`: after the second backward, elements of
the gradient of every flat parameter (0: none), on this rank elements of parameters and of those trained, and after the
step elements of moments.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from oracle.rows import placement_head
from oracle.worker import serve

LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1001, "tie_word_embeddings": False}


def _model(case: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    config = AutoConfig.for_model("llama", **LLAMA | case.get("model", {}))
    stored = torch.bfloat16 if "storage" in case or case.get("peft_wrap") else torch.float32
    stored = getattr(torch, case["base"]) if "base" in case else stored
    model = AutoModelForCausalLM.from_config(config, dtype=stored, attn_implementation="sdpa").train()
    if "storage" in case:
        model = _packed(model, getattr(torch, case["storage"]), config)
    if "lora" in case:
        from peft import LoraConfig, get_peft_model
        rank, modules = case["lora"]
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=rank, target_modules=modules))
        for p in model.parameters():
            p.data = p.data.to(stored) if p.requires_grad and not case.get("peft_wrap") else p.data
    if case.get("checkpoint"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={
            "use_reentrant": case["checkpoint"] == "reentrant"})
    return model


def _policy(case: dict[str, Any], model: Any) -> Any:
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    if case.get("peft_wrap"):
        from peft.utils.other import fsdp_auto_wrap_policy
        return fsdp_auto_wrap_policy(model)
    return ModuleWrapPolicy({LlamaDecoderLayer}) if case.get("wrap", True) else None


def _upcast(model: Any) -> Any:
    """As accelerate 1.15.0 does under mixed precision (`accelerator.py`, prepare_model): what trains, unit by unit."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel
    for module in FullyShardedDataParallel.fsdp_modules(model):
        if module._has_params and module._flat_param.requires_grad and module._flat_param.dtype != torch.float32:
            module._flat_param.data = module._flat_param.data.to(torch.float32)
            module._handle._orig_param_dtype = torch.float32
    return model


def _packed(model: Any, storage: Any, config: Any) -> Any:
    """As transformers loads it."""
    import bitsandbytes as bnb
    import probe_qlora
    import torch
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert
    bnb.autograd._functions.torch = type("torch", (), {**vars(torch), "ops": probe_qlora.Ops})
    weights = {name: p.data for name, p in model.named_parameters()}
    made = replace_with_bnb_linear(model, get_keys_to_not_convert(model), BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=storage))
    for name, part in made.named_modules():
        if isinstance(part, bnb.nn.Linear4bit):
            part.weight = bnb.nn.Params4bit(weights[f"{name}.weight"], requires_grad=False, compress_statistics=True,
                                            quant_type="nf4", quant_storage=storage, module=part).to("cpu")
    made.is_loaded_in_4bit = True  # what PEFT asks for
    return made


def _constants(model: Any) -> int:
    states = [part.quant_state for part in model.modules() if getattr(part, "quant_state", None) is not None]
    parts = [x for s in states for x in (s.absmax, s.code, s.offset, s.state2.absmax, s.state2.code)]
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in parts}.values())


def _wrapped(case: dict[str, Any], model: Any, mesh: Any) -> Any:
    import torch
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    low = MixedPrecision(torch.bfloat16, getattr(torch, case.get("reduce", "bfloat16")), torch.bfloat16)
    prefetch = case.get("backward_prefetch", "BACKWARD_PRE")
    return _upcast(FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy[case.get("strategy", "FULL_SHARD")],
        auto_wrap_policy=_policy(case, model), device_mesh=mesh,
        mixed_precision=low if case.get("mixed", True) else None,
        backward_prefetch=None if prefetch == "NO_PREFETCH" else BackwardPrefetch[prefetch],
        forward_prefetch=case.get("forward_prefetch", False), use_orig_params=case.get("use_orig_params", False)))


def _note(events: list[Any], units: dict[int, int]) -> None:
    """Collectives and the life of whole flat parameters."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import _flat_param

    def noting(name: str, call: Any, *given: Any, **named: Any) -> Any:
        tensors = [x for x in (*given, *named.values()) if torch.is_tensor(x)]
        lists = [x for x in given if isinstance(x, list)]
        sizes = [sum(y.numel() * y.element_size() for y in x) for x in lists]
        events.append([name, max([x.numel() * x.element_size() for x in tensors] + sizes)])
        return call(*given, **named)

    for name, ours in (("all_gather", "all_gather"), ("all_gather_single", "all_gather"), ("all_reduce", "all_reduce"),
                       ("reduce_scatter_single", "reduce_scatter"), ("all_gather_into_tensor", "all_gather"),
                       ("reduce_scatter_tensor", "reduce_scatter")):
        if name in vars(dist):
            setattr(dist, name, partial(noting, ours, getattr(dist, name)))
    made, freed = _flat_param._alloc_storage, _flat_param._free_storage

    def came(tensor: Any, size: Any) -> None:
        if id(tensor) in units:
            events.append(["+", units[id(tensor)]])
        made(tensor, size)

    def went(tensor: Any) -> None:
        if id(tensor) in units and tensor.untyped_storage().size():
            events.append(["-", units[id(tensor)]])
        freed(tensor)

    _flat_param._alloc_storage, _flat_param._free_storage = came, went


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The second of two steps."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore
    torch.manual_seed(0)
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(case["ranks"]), "MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}
    dist.init_process_group("fake", store=FakeStore(), rank=case.get("rank", 0), world_size=case["ranks"])
    mesh = init_device_mesh("cpu", (case["ranks"] // case["shard"], case["shard"])) if "shard" in case else None
    events: list[Any] = []
    numbers: dict[int, int] = {}
    _note(events, numbers)
    plain = _model(case)
    if case.get("peft_wrap"):  # accelerate 1.15.0 accelerator.py prepare_model
        plain.forward = torch.autocast("cpu", torch.bfloat16)(plain.forward)
    model = _wrapped(case, plain, mesh)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(2):
        events.clear()
        for number in range(case.get("microbatches", 1)):
            is_last = number == case.get("microbatches", 1) - 1
            tokens = torch.randint(0, LLAMA["vocab_size"], (1, 32))
            if case.get("no_sync") and not is_last:
                with model.no_sync():
                    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            else:
                model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            if not numbers:
                numbers |= _numbers(model)
        rest = _resting(model) if "lora" in case else {}
        optimizer.step()
        grads = {str(p.grad.dtype) for p in model.parameters() if p.grad is not None}
        optimizer.zero_grad()
    handles = model._all_handles
    units = [[h.flat_param._unpadded_unsharded_size.numel(), h.flat_param._local_shard.numel()] for h in handles]
    if rest:
        states = [x for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x)]
        rest["moments"] = sum(x.numel() for x in states if x.dim())
        more = {"constants": _constants(model)} if "storage" in case else {}
        more |= {"step": list(events)} if "storage" in case or "peft_wrap" in case else {}
        return placement_head(case) | {"units": units, "rest": rest} | more
    return placement_head(case) | {"units": units, "grads": sorted(grads), "step": list(events)}


def _resting(model: Any) -> dict[str, Any]:
    """Of a rank's own parts, before the step."""
    grads = [0 if h.flat_param.grad is None else h.flat_param.grad.numel() for h in model._all_handles]
    return {"grads": grads, "params": sum(p.numel() for p in model.parameters()),
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad)}


def _numbers(model: Any) -> dict[int, int]:
    """Which unit a whole parameter, or the copy that stands for it, is of."""
    found = {}
    for number, handle in enumerate(model._all_handles):
        for name in ("_full_param_padded",) if handle.uses_sharded_strategy else ("_mp_shard",):
            if hasattr(handle.flat_param, name):
                found[id(getattr(handle.flat_param, name))] = number
    return found


def named(row: dict[str, Any]) -> dict[str, Any]:
    """What torch refuses is told with its message."""
    if "error" not in row:
        return row
    return placement_head(row["case"]) | {"refused": row["error"]}


if __name__ == "__main__":
    serve(measure, named)
