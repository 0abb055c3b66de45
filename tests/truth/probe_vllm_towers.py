"""Vision towers as vLLM 0.25.1 itself builds and runs them, on a machine without a GPU: sizes, and the highest moment.

    PYTHONPATH=FOLDER python tests/truth/probe_vllm_towers.py > tests/truth/vllm/towers-0.25.1.json

FOLDER holds `vllm/` as the wheel unpacks; cloudpickle, msgspec, cachetools, cbor2, blake3, pybase64 and torchvision
are beside it. The towers are built on torch's device "meta" for each tp and encode one image. Stand-ins: groups of
ranks, packages that only a server needs, and what is a kernel on a GPU: rotation and attention, which put out one
tensor each, and the look-up of positions. `sizes`: elements of each module's parameters; `highest`: most elements of
16 bits that tensors hold at once beside parameters, as `tensors` names them by their elements; `stays`: what of it
the caller gets.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import SimpleNamespace as Bag
from typing import Any
from unittest.mock import MagicMock

os.environ |= {"VLLM_LOGGING_LEVEL": "CRITICAL", "HF_HUB_OFFLINE": "1", "VLLM_CONFIGURE_LOGGING": "0"}

import torch
from json_lines import listed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

SERVER = (
    "aiohttp", "anthropic", "compressed_tensors", "cv2", "depyf", "diskcache", "fastapi", "gguf", "ijson", "imageio",
    "jsonschema", "lark", "llguidance", "lm_format_enforcer", "mcp", "mistral_common", "nixl", "openai",
    "openai_harmony", "opentelemetry", "outlines_core", "partial_json_parser", "prometheus_client",
    "prometheus_fastapi_instrumentator", "pynvml", "quack", "setproctitle", "soundfile", "starlette", "tokenspeed",
    "uvloop", "watchfiles", "xgrammar", "zmq")
TOWERS: dict[str, dict[str, Any]] = {
    "qwen3.5-0.8b": {"depth": 12, "hidden_size": 768, "intermediate_size": 3072, "num_heads": 12,
                     "out_hidden_size": 1024},
    "qwen3.5-9b": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
                   "out_hidden_size": 4096},
    "qwen3.5-35b-a3b": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
                        "out_hidden_size": 2048},
    "small": {"depth": 3, "hidden_size": 64, "intermediate_size": 176, "num_heads": 4, "out_hidden_size": 1024},
}
BASE = {"num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "in_channels": 3, "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []}
CASES = [(name, tp) for name, tps in (("qwen3.5-0.8b", (1, 2, 4)), ("qwen3.5-9b", (1, 2, 4, 8)),
                                      ("qwen3.5-35b-a3b", (1, 4, 8)), ("small", (1, 2, 4))) for tp in tps]
GRID = (256, 256)
"""Rows and columns of patches of the largest image: `size.longest_edge` 16,777,216 pixels of the published
preprocessor_config.json of Qwen 3 VL and Qwen 3.5, patches of 16."""


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty packages in place of those that only a server needs."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Returns a package for a name in `SERVER`."""
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in SERVER else None

    def create_module(self, spec: Any) -> Any:
        """Returns a mock."""
        made = MagicMock(name=spec.name)
        made.__path__, made.__spec__, made.__name__, made.__version__ = [], spec, spec.name, "0"
        return made

    def exec_module(self, module: Any) -> None:
        """Runs nothing."""


class Alive(TorchDispatchMode):
    """The highest bytes of what operators made on the device "meta", storages counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Any = WeakIdKeyDictionary()
        self.known: set[int] = set()
        self.peak, self.parts = 0, list[int]()

    def alive(self) -> dict[int, int]:
        """Bytes by storage."""
        return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in list(self.made.keys())
                if t.device.type == "meta" and t.untyped_storage()._cdata not in self.known}

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and counts what is alive behind it."""
        out = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.made[leaf] = True
        now = self.alive()
        if sum(now.values()) > self.peak:
            self.peak, self.parts = sum(now.values()), sorted(now.values())
        return out


def groups(tp: int) -> None:
    """Groups of ranks that send nothing."""
    import vllm.distributed.parallel_state as state

    for name in ("_TP", "_PP", "_DP", "_EP", "_WORLD", "_DCP", "_PCP"):
        group = MagicMock(world_size=tp if name in ("_TP", "_WORLD") else 1, rank_in_group=0, rank=0)
        group.all_reduce = lambda given: given
        setattr(state, name, group)


def built(name: str, tp: int) -> Any:
    """A tower on the device "meta"."""
    import vllm.model_executor.models.qwen2_5_vl as older
    import vllm.model_executor.models.qwen3_vl as code
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    groups(tp)
    code.get_vit_attn_backend = older.get_vit_attn_backend = lambda **_: None
    code.is_vit_use_data_parallel = older.is_vit_use_data_parallel = lambda *_: False
    code.get_fp8_padded_hidden_size = lambda *_: None
    older.MMEncoderAttention = code.MMEncoderAttention = Attention
    older.ApplyRotaryEmb = Rotation
    code.pos_embed_interpolate_native = positions
    code._ACTIVATION_REGISTRY = {"gelu_pytorch_tanh": torch.nn.GELU(approximate="tanh")}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))), torch.device("meta"):
            return code.Qwen3_VisionTransformer(Bag(**BASE | TOWERS[name]))
    finally:
        torch.set_default_dtype(before)


class Attention(torch.nn.Module):
    """Attention that puts out one tensor."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, query: torch.Tensor, **_: Any) -> torch.Tensor:
        """Returns as many elements as the queries have."""
        return torch.empty_like(query)

    @staticmethod
    def maybe_compute_seq_lens(*_: Any) -> None:
        """Returns nothing: another kernel's."""

    @staticmethod
    def compute_max_seqlen(*_: Any) -> int:
        """Returns a number."""
        return 1

    @staticmethod
    def maybe_recompute_cu_seqlens(*_: Any, **__: Any) -> None:
        """Returns nothing: a few numbers."""


class Rotation(torch.nn.Module):
    """Rotation that puts out one tensor."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, given: torch.Tensor, *_: Any) -> torch.Tensor:
        """Returns as many elements as are given."""
        return torch.empty_like(given)


def positions(weight: torch.Tensor, t: int, h: int, w: int, _: int, __: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector for each patch, as the kernel writes it."""
    return torch.empty(t * h * w, weight.shape[1], dtype=dtype, device=weight.device)


def measured(name: str, tp: int) -> dict[str, Any]:
    """One tower on a rank of `tp`, and one image of the largest size."""
    tower = built(name, tp)
    sizes: dict[str, int] = {}
    for path, given in tower.named_parameters():
        part = ".".join(path.split(".")[:2 if path.startswith("blocks") else 1])
        sizes[part] = sizes.get(part, 0) + given.numel()
    patches = GRID[0] * GRID[1]
    alive = Alive()
    alive.known = {one.untyped_storage()._cdata for one in (*tower.parameters(), *tower.buffers())}
    with torch.no_grad(), alive:
        pixels = torch.empty(patches, 3 * 2 * 16**2, dtype=torch.bfloat16, device="meta")
        tower.rotary_pos_emb.get_cos_sin = lambda n: tuple(
            torch.empty(n, tower.rotary_pos_emb.rotary_dim // 2, dtype=torch.bfloat16, device="meta") for _ in range(2))
        alive.made[pixels] = True
        out = tower(pixels, [[1, *GRID]])
    parts = {"patches": sizes["patch_embed"] + sizes["pos_embed"], "layer": sizes["blocks.0"],
             "merger": sizes["merger"]}
    return {"model": name, "vision": TOWERS[name], "tp": tp, "depth": len(tower.blocks), "sizes": parts,
            "highest": alive.peak // 2, "tensors": [size // 2 for size in alive.parts],
            "stays": pixels.numel() + out.numel(),
            "table": tower.rotary_pos_emb.cos_sin_cache.untyped_storage().nbytes()}


def without_server() -> None:
    """Lets vLLM be imported without what only a server, or a GPU, needs."""
    sys.meta_path.insert(0, Absent())
    register = torch.library.register_fake
    torch.library.register_fake = lambda name, *given, **more: (lambda made: made) if str(name).startswith(
        "torchvision") else register(name, *given, **more)


def main() -> str:
    """Text of the file."""
    without_server()
    import vllm

    return listed([{"version": vllm.__version__} | measured(*case) for case in CASES])


if __name__ == "__main__":
    sys.stdout.write(f"{main()}\n")
