"""Pages and blocks of a KV cache, worked out by vLLM's own functions on a machine without a GPU.

    python tests/truth/probe_vllm.py FOLDER > tests/truth/vllm/cache-0.12.0.json

FOLDER holds `vllm/` as the wheel of 0.12.0 unpacks. The files that decide are run as they are: the specs of
`v1/kv_cache_interface.py`, groups and blocks of `v1/core/kv_cache_utils.py`, the block size of hybrids in
`model_executor/models/config.py`, shapes of Mamba states in `model_executor/layers/mamba/mamba_utils.py`. All other
modules of vLLM are stand-ins that do nothing.
"""

from __future__ import annotations

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

REAL = ("vllm.v1.kv_cache_interface", "vllm.v1.core.kv_cache_utils", "vllm.model_executor.models.config",
        "vllm.model_executor.layers.mamba.mamba_utils", "vllm.utils.math_utils", "vllm.utils.torch_utils")
CASES = [
    {"name": name, "model": model, "tp": tp, "kv": kv, "ssm": ssm, "len": length, "bytes": size}
    for name, model, tp, kv, ssm, length, size in (
        ("nano-tp4", "nemotron-3-nano-30b-a3b", 4, "auto", "auto", 262144, 50 * 2**30),
        ("nano-tp4-fp8", "nemotron-3-nano-30b-a3b", 4, "fp8", "auto", 262144, 50 * 2**30),
        ("nano-tp4-fp32-state", "nemotron-3-nano-30b-a3b", 4, "auto", "float32", 2048, 30 * 2**30),
        ("nano-tp1", "nemotron-3-nano-30b-a3b", 1, "auto", "auto", 32768, 7 * 2**30),
        ("nano-tp8", "nemotron-3-nano-30b-a3b", 8, "auto", "float32", 131072, 60 * 2**30),
        ("nano-4b-tp1", "nemotron-3-nano-4b", 1, "auto", "auto", 65536, 20 * 2**30),
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
    if pattern is None:
        return fields["num_hidden_layers"], 0
    return pattern.count("*"), pattern.count("M")


def measure(case) -> dict[str, object]:
    import torch
    interface, kv_cache_utils, models_config, states = map(importlib.import_module, REAL[:4])
    fields = json.loads((PRESETS / f"{case['model']}.json").read_text())
    heads, tp = fields["num_key_value_heads"], case["tp"]
    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    model = Bag(dtype=torch.bfloat16, max_model_len=case["len"], use_mla=False, architecture="",
                get_num_kv_heads=lambda _: max(1, heads // tp), get_head_size=lambda: head_dim)
    cache = Bag(cache_dtype=case["kv"], mamba_cache_dtype="auto", mamba_ssm_cache_dtype=case["ssm"], block_size=None,
                mamba_block_size=None, mamba_page_size_padded=None, enable_prefix_caching=False,
                num_gpu_blocks_override=None)
    parallel = Bag(tensor_parallel_size=tp, decode_context_parallel_size=1, prefill_context_parallel_size=1)
    vllm = Bag(model_config=model, cache_config=cache, parallel_config=parallel,
               scheduler_config=Bag(disable_hybrid_kv_cache_manager=False), compilation_config=MagicMock())
    attention, mamba = layers_of(fields)
    specs = {}
    if mamba:
        shapes = states.MambaStateShapeCalculator.mamba2_state_shape(
            tp_world_size=tp, intermediate_size=fields["mamba_num_heads"] * fields["mamba_head_dim"],
            n_groups=fields["n_groups"], num_heads=fields["mamba_num_heads"], head_dim=fields["mamba_head_dim"],
            state_size=fields["ssm_state_size"], conv_kernel=fields.get("conv_kernel", 4))
        dtypes = states.MambaStateDtypeCalculator.mamba2_state_dtype(model.dtype, "auto", case["ssm"])
        made = Bag(get_mamba_state_shape_from_config=lambda _: shapes,
                   get_mamba_state_dtype_from_config=lambda _: dtypes)
        models_config.ModelRegistry = Bag(resolve_model_cls=lambda *_, **__: (made, ""))
        models_config.current_platform = Bag(is_device_capability=lambda _: False)
        models_config.HybridAttentionMambaModelConfig.verify_and_update_config(vllm)
        state = interface.MambaSpec(shapes=shapes, dtypes=dtypes, block_size=case["len"],
                          page_size_padded=cache.mamba_page_size_padded)
        specs |= {f"mamba.{i}": state for i in range(mamba)}
    block = cache.block_size or 16
    dtype = torch.uint8 if case["kv"] == "fp8" else torch.bfloat16
    keys = interface.FullAttentionSpec(block_size=block, num_kv_heads=max(1, heads // tp), head_size=head_dim,
                                       dtype=dtype)
    specs = {f"attention.{i}": keys for i in range(attention)} | specs
    groups = kv_cache_utils.get_kv_cache_groups(vllm, specs)
    found = kv_cache_utils.get_kv_cache_config_from_groups(vllm, groups, case["bytes"])
    needed = kv_cache_utils.max_memory_usage_bytes(vllm, specs.values())
    return {**case, "block_size": block, "page_bytes": keys.page_size_bytes, "groups": len(groups),
            "num_blocks": found.num_blocks, "needed_bytes": needed,
            "cache_bytes": sum(tensor.size for tensor in found.kv_cache_tensors),
            "concurrency": kv_cache_utils.get_max_concurrency_for_kv_cache_config(vllm, found)}


def main() -> None:
    sys.meta_path.insert(0, StandIns(Path(sys.argv[1])))
    rows = [measure(case) for case in CASES]
    sys.stdout.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
