"""Runs torch code of Megatron-Bridge's `Qwen3VLModel` on a CPU, and tells which storages autograd keeps.

    PYTHONPATH=MEGATRON_LM:MEGATRON_BRIDGE/src python tests/truth/probe_bridge_images.py

It writes models/bridge-images-saved-main-2026-08-22.json. Sources: Megatron-LM d98e8a64 and Megatron-Bridge 067f987d.
`saved`: bytes by distinct storage, the largest first, without parameters: of embedded patches with their positions, of
a rotated query of the tower (in fp32) and of the decoder, of features added behind a layer of the decoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from oracle import te_stub

te_stub.install()

import torch  # noqa: E402
from megatron.bridge.models.qwen_vl.modelling_qwen3_vl import rope, transformer_block, utils, vision_model  # noqa: E402

STORED = Path(__file__).parent / "models" / "bridge-images-saved-main-2026-08-22.json"
WIDTH, POSITIONS, SIDE, HEADS, TOKENS, HIDDEN = 96, 64, 4, 4, 32, 40
PATCHES, DIM, FEATURES = SIDE * SIDE, WIDTH // HEADS, SIDE * SIDE // 4
BF16 = torch.bfloat16


def saved(run: Callable[[], torch.Tensor], module: torch.nn.Module | None = None) -> list[int]:
    """Bytes of the storages that nodes of `run()` save, the parameters of `module` left out."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()} if module else set()
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = run()
    out.sum().backward()
    return sorted((one.nbytes() for one in kept.values()), reverse=True)


def patches() -> list[int]:
    """`Qwen3VLVisionModel.forward` up to its layers."""
    config = SimpleNamespace(patch_size=16, temporal_patch_size=2, in_channels=3, hidden_size=WIDTH,
                             spatial_merge_size=2)
    module = torch.nn.Module()
    module.patch_embed = utils.Qwen3VLVisionPatchEmbed(config).to(BF16)
    module.pos_embed = torch.nn.Embedding(POSITIONS, WIDTH).to(BF16)
    module.num_grid_per_side, module.config = int(POSITIONS**0.5), config
    pixels, grid = torch.randn(PATCHES, 3 * 2 * 16 * 16), torch.tensor([[1, SIDE, SIDE]])
    place = vision_model.Qwen3VLVisionModel.fast_pos_embed_interpolate
    return saved(lambda: module.patch_embed(pixels) + place(module, grid), module)


def rotated(heads: int, dim: int, rows: int, *, wide: bool) -> list[int]:
    config = SimpleNamespace(apply_rope_fusion=False, apply_rotary_pos_emb_in_fp32=wide, rotary_interleaved=False)
    x = torch.randn(rows, *(() if wide else (1,)), heads, dim, dtype=BF16, requires_grad=True)
    lengths = torch.tensor([0, rows], dtype=torch.int32) if wide else None
    freqs = torch.randn(rows, 1, 1, dim)
    return saved(lambda: rope.apply_rotary_pos_emb_absolute(x * 1, freqs, config, cu_seqlens=lengths))


def featured(batch: int) -> list[int]:
    x = torch.randn(TOKENS, batch, HIDDEN, dtype=BF16, requires_grad=True)
    mask = torch.zeros(batch, TOKENS, dtype=torch.bool)
    mask[:, :FEATURES] = True
    features = torch.randn(batch * FEATURES, HIDDEN, dtype=BF16, requires_grad=True)
    add = transformer_block.Qwen3VLTransformerBlock._deepstack_process
    return saved(lambda: add(None, x * 1, mask, features))


def main() -> None:
    rows = {"patches": patches(), "rotation of the tower": rotated(HEADS, DIM, PATCHES, wide=True),
            "rotation of the decoder": rotated(HEADS, DIM, TOKENS, wide=False), "features": featured(1),
            "features of two sequences": featured(2)}
    shape = {"width": WIDTH, "patches": PATCHES, "heads": HEADS, "tokens": TOKENS, "features": FEATURES}
    STORED.write_text(json.dumps({"shape": shape, "saved": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
