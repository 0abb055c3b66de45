"""What saving a model copies to the host, and what it allocates beside the model: trainers of Hugging Face models.

    DS_ACCELERATOR=cpu python tests/truth/probe_save.py > tests/truth/phases/save-transformers-5.23.json

Runs on a CPU, with real tensors that say they lie on a GPU until they are copied to the host, so that the libraries go
their way. `host`: most bytes of such copies at once in rank 0; `others`: what another rank holds; `device`: most bytes
beside the model on the device; `file`: bytes of the largest file. `way`: what transformers' `Trainer.save_model` calls
under DDP (`save_pretrained`, with PEFT's for adapters), under FSDP1 (the same with a state dict that accelerate has
gathered on the host; the gather itself is not run), under ZeRO-1 and 2 and under ZeRO-3 (accelerate's `get_state_dict`;
gathers of DeepSpeed's `GatheredParameters` are recorded instead of run, since its parameters are whole here). `bridge`:
`save_generator` of Megatron-Bridge, fed with tensors in the order of its tasks: most bytes that wait for their files.
"""

from __future__ import annotations

import ast
import gc
import importlib.metadata
import importlib.util
import json
import math
import re
import sys
import tempfile
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import accelerate
import deepspeed
import huggingface_hub
import peft
import safetensors.torch
import torch
import transformers
from accelerate.utils import DistributedType
from oracle.steps import models
from oracle.steps.tracker import Tracker
from torch.overrides import TorchFunctionMode

SMALL = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama-tiny", {}),
    "qwen3": ("qwen3-30b-a3b", {**SMALL, "num_hidden_layers": 3, "num_experts": 8, "moe_intermediate_size": 128}),
    "qwen1.5": ("qwen1.5-moe-a2.7b", {
        "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512, "num_experts": 4,
        "num_hidden_layers": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 256}),
    "mixtral": ("mixtral-8x7b", {**SMALL, "num_hidden_layers": 2, "num_local_experts": 4, "intermediate_size": 128}),
    "deepseek 2": ("deepseek-v2-lite", {
        "hidden_size": 256, "vocab_size": 512, "num_hidden_layers": 3, "first_k_dense_replace": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32, "v_head_dim": 32, "intermediate_size": 256, "moe_intermediate_size": 64,
        "n_routed_experts": 8}),
    "nemotron 3": ("nemotron-3-tiny", {}),
    "granite 4": ("granite-4.0-h-tiny", {
        "hidden_size": 256, "vocab_size": 512, "num_hidden_layers": 2, "layer_types": ["attention", "mamba"],
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "num_local_experts": 8,
        "shared_intermediate_size": 256, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 32}),
    "gpt-oss": ("gpt-oss-20b", {**SMALL, "num_hidden_layers": 2, "num_local_experts": 4, "intermediate_size": 128,
                                "layer_types": ["sliding_attention", "full_attention"]})}
MLP = ["gate_proj", "up_proj", "down_proj"]
CASES: dict[str, dict[str, Any]] = {
    **{f"{model}, ddp": {"model": model, "way": "ddp"} for model in MODELS},
    "llama, ddp, files of 1 MB": {"model": "llama", "way": "ddp", "files": 10**6},
    "mixtral, ddp, files of 1 MB": {"model": "mixtral", "way": "ddp", "files": 10**6},
    "llama, lora, ddp": {"model": "llama", "way": "ddp", "targets": MLP},
    "qwen3, lora, ddp": {"model": "qwen3", "way": "ddp", "targets": MLP},
    **{f"{model}{how}, {way}": {"model": model, "way": way, **of} for model in ("llama", "qwen3")
       for how, of in (("", {}), (", lora", {"targets": MLP})) for way in ("fsdp1", "zero2", "zero3")
       if not (model == "qwen3" and how and way != "zero2")}}  # where adapters of fused experts are served


class Host(TorchFunctionMode):
    """Every tensor lies on a GPU but copies that were made for the host, which are counted while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == torch.Tensor.device.__get__:
            return torch.device("cpu" if args[0].untyped_storage()._cdata in self.there else "cuda:0")
        if func in (torch.Tensor.to, torch.Tensor.cpu):
            if func == torch.Tensor.cpu or str(args[1]) == "cpu":
                return args[0] if args[0].untyped_storage()._cdata in self.there else self.arrived(args[0].clone())
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if func == torch.Tensor.contiguous and args[0].untyped_storage()._cdata in self.there:
            return self.arrived(out)  # a copy on the host of what is there
        return out

    def arrived(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.there:
            self.there[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, storage._cdata)
        return tensor

    def _gone(self, address: int) -> None:
        self.now -= self.there.pop(address)


def built(case: dict[str, Any]) -> Any:
    preset, fields = MODELS[case["model"]]
    model = models.build_meta(preset, fields).to_empty(device="cpu").to(torch.bfloat16)
    model.tie_weights()
    if case.get("targets"):
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=case["targets"]),
                                    autocast_adapter_dtype=False)
    return model


class Gathers:
    """Stands for DeepSpeed's GatheredParameters: `most` bytes that one of them gathers."""

    most = 0

    def __init__(self, params: list[Any], **_: Any) -> None:
        Gathers.most = max(Gathers.most, sum(p.numel() * p.element_size() for p in params))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class Engine:
    """As much of a DeepSpeed engine as its `_zero3_consolidated_16bit_state_dict` asks for."""

    def __init__(self, module: Any) -> None:
        self.module = module
        for number, p in enumerate(module.parameters()):
            p.ds_id = number

    def __getattr__(self, name: str) -> Any:
        if name == "_zero3_consolidated_16bit_state_dict":
            engine: Any = deepspeed.runtime.engine.DeepSpeedEngine
            return lambda **more: engine._zero3_consolidated_16bit_state_dict(self, **more)
        yes = name in ("zero_optimization_partition_weights", "zero_gather_16bit_weights_on_model_save")
        return lambda *_, **__: 1 if name == "autotp_size" else yes


def state_dict_of(model: Any, way: str) -> Any:
    """The state dict that accelerate makes for rank 0, None where `save_pretrained` makes its own."""
    if way == "ddp":
        return None
    stage = {"zero2": 2, "zero3": 3}.get(way)
    if stage is None:  # FSDP1 has gathered all of it on the host of rank 0
        return {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    if stage == 3 and isinstance(model, peft.PeftModel):  # Trainer.save_model
        return Engine(model)._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
    self = types.SimpleNamespace(distributed_type=DistributedType.DEEPSPEED, unwrap_model=lambda model: model,
                                 deepspeed_config={"zero_optimization": {"stage": stage}})
    return accelerate.Accelerator.get_state_dict(self, Engine(model) if stage == 3 else model)


@contextmanager
def one_rank() -> Iterator[None]:
    engine = sys.modules["deepspeed.runtime.engine"]
    old = deepspeed.zero.GatheredParameters, engine.dist.get_rank, engine.GatherReplacedLayerParams
    deepspeed.zero.GatheredParameters, engine.dist.get_rank = Gathers, lambda *_: 0
    engine.GatherReplacedLayerParams = lambda *_, **__: tempfile.TemporaryDirectory()
    try:
        yield
    finally:
        deepspeed.zero.GatheredParameters, engine.dist.get_rank, engine.GatherReplacedLayerParams = old


def measured(case: dict[str, Any]) -> dict[str, int]:
    model, way = built(case), case["way"]
    Gathers.most = 0
    with one_rank(), tempfile.TemporaryDirectory() as folder:
        with Host() as host:
            state_dict = state_dict_of(model, way)
            others = host.most if way == "zero2" else 0
            model.save_pretrained(folder, state_dict=state_dict, max_shard_size=case.get("files", 50 * 10**9))
        state_dict = None
        written = max(sum(t.numel() * t.element_size() for t in safetensors.torch.load_file(file).values())
                      for file in Path(folder).glob("*.safetensors"))
        gc.collect()
        tracker = Tracker()
        with tracker:
            for tensor in (*model.parameters(), *model.buffers()):
                tracker.number_of(tensor)
            start, rest = len(tracker.events), sum(size for _, size in tracker.events)
            model.save_pretrained(folder)
        running = [0, *accumulate(change for _, change in tracker.events[start:])]
    del rest
    return {"host": host.most, "others": others, "device": max(running) if way == "ddp" else Gathers.most,
            "file": written}


# ---- Megatron-Bridge -------------------------------------------------------------------------------------------------
BRIDGE = Path(str(importlib.metadata.distribution("megatron-bridge").locate_file("megatron/bridge/models")))
LAYERS, HIDDEN, FFN, VOCAB = 4, 64, 128, 1000
EXPORTS: dict[str, int | None] = {"one file": None, "files of 200 kB": 200_000, "files of 400 kB": 400_000}


def _functions(file: Path, names: set[str], known: dict[str, Any]) -> dict[str, Any]:
    """Functions and methods of that name, from a file whose imports need Megatron."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    exec(compile(ast.Module(found, []), str(file), "exec"), known)  # noqa: S102
    return known


def _of_llama() -> dict[str, tuple[str, ...]]:
    """Megatron's name of a tensor -> those of Hugging Face, as Bridge's Llama maps them."""
    found = {"embedding.word_embeddings.weight": ("model.embed_tokens.weight",),
             "decoder.final_layernorm.weight": ("model.norm.weight",), "output_layer.weight": ("lm_head.weight",)}
    for n in range(LAYERS):
        at, to = f"decoder.layers.{n}", f"model.layers.{n}"
        found |= {f"{at}.self_attention.linear_proj.weight": (f"{to}.self_attn.o_proj.weight",),
                  f"{at}.self_attention.linear_qkv.weight": tuple(f"{to}.self_attn.{x}_proj.weight" for x in "qkv"),
                  f"{at}.self_attention.linear_qkv.layer_norm_weight": (f"{to}.input_layernorm.weight",),
                  f"{at}.mlp.linear_fc1.weight": tuple(f"{to}.mlp.{x}_proj.weight" for x in ("gate", "up")),
                  f"{at}.mlp.linear_fc1.layer_norm_weight": (f"{to}.post_attention_layernorm.weight",),
                  f"{at}.mlp.linear_fc2.weight": (f"{to}.mlp.down_proj.weight",)}
    return found


def exported(limit: int | None) -> dict[str, int]:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False)
    whole = transformers.LlamaForCausalLM(config).to(torch.bfloat16).state_dict()
    split = huggingface_hub.split_torch_state_dict_into_shards(whole, max_shard_size=limit or 10**12)
    key = _functions(BRIDGE / "conversion/utils.py", {"extract_sort_key"}, {"re": re})["extract_sort_key"]
    save = _functions(BRIDGE / "hf_pretrained/state.py", {"save_generator"},
                      {"torch": torch, "Path": Path, "json": json, **{n: getattr(__import__("typing"), n) for n in (
                          "Iterable", "Tuple", "Union")}, "defaultdict": __import__("collections").defaultdict})
    waiting: dict[str, int] = {}
    most = [0]

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        names = _of_llama()
        for name in sorted(names, key=key):
            for one in names[name]:
                waiting[one] = whole[one].numel() * 2
                most[0] = max(most[0], sum(waiting.values()))
                yield one, whole[one]

    def written(found: dict[str, torch.Tensor], file: Path) -> None:
        for one in found:
            waiting.pop(one, None)

    old, safetensors.torch.save_file = safetensors.torch.save_file, written
    with tempfile.TemporaryDirectory() as folder:
        source = types.SimpleNamespace(key_to_filename_map=split.tensor_to_filename if limit else {},
                                       path=Path(folder))
        save["save_generator"](source, tensors(), folder)
    safetensors.torch.save_file = old
    return {"waits": most[0], "head": VOCAB * HIDDEN * 2, "whole": sum(t.numel() * 2 for t in whole.values()),
            "file": max(math.fsum(whole[one].numel() * 2 for one in names)
                        for names in split.filename_to_tensors.values())}


if __name__ == "__main__":
    rows = {name: case | {"found": measured(case)} for name, case in CASES.items()}
    out, sys.stdout = sys.stdout, sys.stderr  # Bridge prints what it did
    bridge = {name: {"limit": limit, "found": exported(limit)} for name, limit in EXPORTS.items()}
    sys.stdout = out
    print(json.dumps({"transformers": transformers.__version__, "peft": peft.__version__,
                      "safetensors": importlib.metadata.version("safetensors"), "accelerate": accelerate.__version__,
                      "deepspeed": deepspeed.__version__, "models": MODELS, "cases": rows,
                      "bridge": {"layers": LAYERS, "hidden": HIDDEN, "ffn": FFN, "vocab": VOCAB, "cases": bridge}},
                     indent=1))
