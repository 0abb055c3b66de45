"""Pages and blocks of a KV cache, worked out by vLLM's own functions on a machine without a GPU.

    python tests/truth/probe_vllm.py FOLDER > tests/truth/vllm/cache-0.12.0.json      and the same of 0.25.1

FOLDER holds `vllm/` as the wheel of that version unpacks. The files that decide are run as they are: the specs of
`v1/kv_cache_interface.py`, groups and blocks of `v1/core/kv_cache_utils.py`, the block size of hybrids in
`model_executor/models/config.py` (0.12.0) or `platforms/interface.py` (0.25.1), shapes of Mamba states in
`model_executor/layers/mamba/mamba_utils.py`. All other modules of vLLM are stand-ins that do nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace as Bag
from unittest.mock import MagicMock

from json_lines import listed

REAL = ("vllm.v1.kv_cache_interface", "vllm.v1.core.kv_cache_utils", "vllm.model_executor.models.config",
        "vllm.model_executor.layers.mamba.mamba_utils", "vllm.platforms.interface", "vllm.utils.math_utils",
        "vllm.utils.torch_utils", "vllm.v1.kv_cache_spec_registry")
ALL_STATES = {"0.12.0": ("bamba", "granitemoehybrid", "nemotron_h"), "0.25.1": ("granitemoehybrid", "nemotron_h")}
"""Families that are SupportsMambaPrefixCaching, read from `model_executor/models/`."""
CASES = [
    {"name": name, "model": model, "tp": tp, "kv": kv, "ssm": ssm, "len": length, "bytes": size,
     "cached": "cached" in name} | ({"mode": "align"} if "align" in name else {}) | (
        {"drafted": int(name[-1])} if "drafts" in name else {}) | (
        {"pass": int(name.rpartition("-")[2])} if "pass" in name else {})
    for name, model, tp, kv, ssm, length, size in (
        ("nano-tp4", "nemotron-3-nano-30b-a3b", 4, "auto", "auto", 262144, 50 * 2**30),
        ("nano-tp4-fp8", "nemotron-3-nano-30b-a3b", 4, "fp8", "auto", 262144, 50 * 2**30),
        ("nano-tp4-fp32-state", "nemotron-3-nano-30b-a3b", 4, "auto", "float32", 2048, 30 * 2**30),
        ("nano-tp1", "nemotron-3-nano-30b-a3b", 1, "auto", "auto", 32768, 7 * 2**30),
        ("nano-tp8", "nemotron-3-nano-30b-a3b", 8, "auto", "float32", 131072, 60 * 2**30),
        ("nano-tp4-cached", "nemotron-3-nano-30b-a3b", 4, "auto", "float32", 2048, 30 * 2**30),
        ("nano-tp1-cached", "nemotron-3-nano-30b-a3b", 1, "fp8", "auto", 65536, 20 * 2**30),
        ("nano-tp4-cached-align", "nemotron-3-nano-30b-a3b", 4, "auto", "float32", 2048, 30 * 2**30),
        ("super-tp8-cached-align", "nemotron-3-super-120b-a12b", 8, "auto", "float32", 131072, 40 * 2**30),
        ("super-tp8-drafts-5", "nemotron-3-super-120b-a12b", 8, "auto", "auto", 32768, 40 * 2**30),
        ("super-tp4-cached-align-drafts-3", "nemotron-3-super-120b-a12b", 4, "auto", "float32", 65536, 40 * 2**30),
        ("super-tp8-cached-drafts-2", "nemotron-3-super-120b-a12b", 8, "fp8", "float32", 32768, 40 * 2**30),
        ("gemma-1b-tp1-pass-8192", "gemma-3-1b", 1, "auto", "auto", 32768, 20 * 2**30),
        ("gemma-1b-tp1-pass-256", "gemma-3-1b", 1, "auto", "auto", 512, 20 * 2**30),
        ("gemma-27b-tp4-pass-16384", "gemma-3-27b-text", 4, "fp8", "auto", 131072, 30 * 2**30),
        ("oss-tp2-pass-2048", "gpt-oss-20b", 2, "auto", "auto", 4096, 40 * 2**30),
        ("mistral-tp2-pass-512", "mistral-7b-v0.1", 2, "auto", "auto", 32768, 10 * 2**30),
        ("bamba-tp2-cached", "bamba-9b", 2, "auto", "auto", 8192, 30 * 2**30),
        ("granite-tp1-cached", "granite-4.0-h-tiny", 1, "auto", "auto", 16384, 30 * 2**30),
        ("nano-4b-tp1", "nemotron-3-nano-4b", 1, "auto", "auto", 65536, 20 * 2**30),
        ("qwen3.5-9b-tp4-delta", "qwen3.5-9b", 4, "auto", "float32", 32768, 40 * 2**30),
        ("qwen3.5-9b-tp1-delta-cached-align", "qwen3.5-9b", 1, "auto", "float32", 4096, 30 * 2**30),
        ("qwen3.5-35b-tp8-delta-cached-align", "qwen3.5-35b-a3b", 8, "auto", "float32", 4096, 30 * 2**30),
        ("qwen3.5-35b-tp4-delta-fp8", "qwen3.5-35b-a3b", 4, "fp8", "float32", 65536, 30 * 2**30),
        ("next-tp4-delta", "qwen3-next-80b-a3b", 4, "auto", "auto", 32768, 20 * 2**30),
        ("next-tp8-delta-cached-align", "qwen3-next-80b-a3b", 8, "auto", "auto", 8192, 50 * 2**30),
        ("llama-tp1", "llama-3.1-8b", 1, "auto", "auto", 131072, 40 * 2**30),
        ("llama-tp2-fp8", "llama-3.1-8b", 2, "fp8", "auto", 131072, 40 * 2**30),
        ("llama-70b-tp16", "llama-3-70b", 16, "auto", "auto", 8192, 55 * 2**30),
        ("qwen3-moe-tp8", "qwen3-30b-a3b", 8, "auto", "auto", 40960, 60 * 2**30),
    )
]
PRESETS = Path(__file__).resolve().parents[2] / "simcore/models/presets"


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of vLLM that are not in REAL: attributes of them are mocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("vllm"):
            return None
        file = self.folder / (name.replace(".", "/") + ".py")
        if name in REAL:
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda attribute: MagicMock(name=f"{spec.name}.{attribute}")
        return module

    def exec_module(self, module) -> None:
        if module.__name__ == "vllm.distributed":
            module.divide = lambda a, b: a // b


def layers_of(fields) -> tuple[int, int]:
    """Attention layers and Mamba layers."""
    pattern = fields.get("hybrid_override_pattern")
    if pattern is not None:
        return pattern.count("*"), pattern.count("M")
    kinds = fields.get("layers_block_type") or fields.get("layer_types")
    if "linear_num_key_heads" in fields:
        count = fields["num_hidden_layers"]
        return count // fields.get("full_attention_interval", 4), count - count // fields.get(
            "full_attention_interval", 4)
    if kinds is None and "attn_layer_indices" in fields:
        return len(fields["attn_layer_indices"]), fields["num_hidden_layers"] - len(fields["attn_layer_indices"])
    return (fields["num_hidden_layers"], 0) if kinds is None else (kinds.count("attention"), kinds.count("mamba"))


def sees_window(fields, number) -> bool:
    """Layers with a window: of GPT-OSS every other, of Gemma all but each last of a pattern, else all."""
    if fields["model_type"] == "gpt_oss":
        return number % 2 == 0
    return (number + 1) % fields.get("sliding_window_pattern", fields["num_hidden_layers"] + 1) != 0


def mamba_of(fields) -> dict[str, int]:
    """What `mamba2_state_shape` is asked with, in whichever words the configuration has."""
    def first(*names):
        return next(fields[name] for name in names if name in fields)

    heads, size = first("mamba_num_heads", "mamba_n_heads"), first("mamba_head_dim", "mamba_d_head")
    return {"intermediate_size": heads * size, "n_groups": first("n_groups", "mamba_n_groups"), "num_heads": heads,
            "head_dim": size, "state_size": first("ssm_state_size", "mamba_d_state"),
            "conv_kernel": first("conv_kernel", "mamba_d_conv")}


def delta_of(fields) -> tuple[int, ...]:
    """What `gated_delta_net_state_shape` is asked with behind tp."""
    return tuple(fields[f"linear_{name}"] for name in (
        "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim"))


def hybrid_blocks(vllm, family: str) -> None:
    """Lets vLLM set the block size, as 0.12.0 does before the model is there, 0.25.1 after."""
    platform = importlib.import_module("vllm.platforms.interface").Platform
    cache, models_config = vllm.cache_config, importlib.import_module(REAL[2])
    if not hasattr(platform, "_align_hybrid_block_size"):
        vllm.model_config.supports_mamba_prefix_caching = family in ALL_STATES["0.12.0"]
        models_config.HybridAttentionMambaModelConfig.verify_and_update_config(vllm)
        return
    vllm.model_config.supports_mamba_prefix_caching = family in ALL_STATES["0.25.1"]
    models_config.MambaModelConfig.verify_and_update_config(vllm)
    cache.block_size = 16  # CacheConfig.DEFAULT_BLOCK_SIZE, which FlashAttention takes
    sys.modules["vllm.config.vllm"] = Bag(set_current_vllm_config=lambda _: contextlib.nullcontext())
    sys.modules["vllm.v1.attention.backend"] = Bag(MultipleOf=type("MultipleOf", (), {}))
    platform._align_hybrid_block_size(vllm, Bag(get_supported_kernel_block_sizes=lambda: [16]))


def register(interface) -> None:
    """Tells 0.25.1 its own specs, as `single_type_kv_cache_manager.py` does with managers that nobody needs here."""
    if importlib.util.find_spec(REAL[-1]) is not None and hasattr(interface, "KVCacheSpecRegistry"):
        for spec in (interface.FullAttentionSpec, interface.SlidingWindowSpec, interface.MambaSpec):
            interface.KVCacheSpecRegistry.register(spec, manager_class=object)


def measure(case) -> dict[str, object]:
    import torch

    interface, utils, models_config, states = map(importlib.import_module, REAL[:4])
    register(interface)
    fields = json.loads((PRESETS / f"{case['model']}.json").read_text())
    fields = fields.get("text_config", fields)
    heads, tp = fields["num_key_value_heads"], case["tp"]
    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    model = Bag(dtype=torch.bfloat16, max_model_len=case["len"], use_mla=False, architecture="",
                get_num_kv_heads=lambda _: max(1, heads // tp), get_head_size=lambda: head_dim,
                get_mamba_chunk_size=lambda: fields.get("mamba_chunk_size") or fields.get("chunk_size"))
    cache = Bag(cache_dtype=case["kv"], mamba_cache_dtype="auto", mamba_ssm_cache_dtype=case["ssm"], block_size=None,
                mamba_block_size=None, mamba_page_size_padded=None, enable_prefix_caching=case["cached"],
                num_gpu_blocks_override=None, mamba_cache_mode=case.get("mode", "none"),
                user_specified_mamba_block_size=False)
    parallel = Bag(tensor_parallel_size=tp, decode_context_parallel_size=1, prefill_context_parallel_size=1)
    vllm = Bag(model_config=model, cache_config=cache, parallel_config=parallel, kv_transfer_config=None,
               scheduler_config=Bag(disable_hybrid_kv_cache_manager=False, enable_chunked_prefill=True,
                                    max_num_batched_tokens=case.get("pass", 0)),
               compilation_config=MagicMock())
    attention, mamba = layers_of(fields)
    attention += "drafted" in case  # the module's own, of the pattern *E
    specs = {}
    if mamba:
        drafted = {"num_spec": case["drafted"]} if "drafted" in case else {}
        calculator = states.MambaStateShapeCalculator
        shapes = calculator.gated_delta_net_state_shape(tp, *delta_of(fields)) if "linear_num_key_heads" in fields \
            else calculator.mamba2_state_shape(tp_world_size=tp, **mamba_of(fields), **drafted)
        dtypes = states.MambaStateDtypeCalculator.mamba2_state_dtype(model.dtype, "auto", case["ssm"])
        made = Bag(get_mamba_state_shape_from_config=lambda _: shapes,
                   get_mamba_state_dtype_from_config=lambda _: dtypes)
        registry = Bag(resolve_model_cls=lambda *_, **__: (made, ""))
        models_config.ModelRegistry = registry
        sys.modules["vllm.model_executor.models"] = Bag(ModelRegistry=registry, config=models_config)
        models_config.current_platform = Bag(is_device_capability=lambda _: False)
        hybrid_blocks(vllm, fields["model_type"])
        state = interface.MambaSpec(shapes=shapes, dtypes=dtypes, block_size=cache.mamba_block_size,
                                    page_size_padded=cache.mamba_page_size_padded,
                                    num_speculative_blocks=case.get("drafted", 0))
        specs |= {f"mamba.{i}": state for i in range(mamba)}
    block = cache.block_size or 16
    dtype = torch.uint8 if case["kv"] == "fp8" else torch.bfloat16
    keys = interface.FullAttentionSpec(block_size=block, num_kv_heads=max(1, heads // tp), head_size=head_dim,
                                       dtype=dtype)
    window = interface.SlidingWindowSpec(block_size=block, num_kv_heads=max(1, heads // tp), head_size=head_dim,
                                         dtype=dtype, sliding_window=fields.get("sliding_window") or 1)
    specs = {f"attention.{i}": window if "pass" in case and sees_window(fields, i) else keys
             for i in range(attention)} | specs
    groups = utils.get_kv_cache_groups(vllm, specs)
    found = utils.get_kv_cache_config_from_groups(vllm, groups, case["bytes"])
    by_groups = getattr(utils, "_max_memory_usage_bytes_from_groups", None)
    needed = by_groups(vllm, groups) if by_groups else utils.max_memory_usage_bytes(vllm, specs.values())
    return {**case, "block_size": block, "page_bytes": keys.page_size_bytes, "groups": len(groups),
            "num_blocks": found.num_blocks, "needed_bytes": needed,
            "cache_bytes": sum(tensor.size for tensor in found.kv_cache_tensors),
            "concurrency": utils.get_max_concurrency_for_kv_cache_config(vllm, found)}


def main() -> None:
    sys.meta_path.insert(0, StandIns(Path(sys.argv[1])))
    newer = importlib.util.find_spec(REAL[-1]) is not None
    rows = [measure(case) for case in CASES if newer or not (
        {"mode", "drafted", "pass"} & case.keys() or "delta" in case["name"])]
    print(listed(rows))


if __name__ == "__main__":
    main()
