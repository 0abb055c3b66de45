"""Draws layouts of Megatron-Core, and measures what rotary embeddings hold on a rank: tables and cached angles.

    python tests/truth/draw_rotary_tables.py > tests/truth/placement/rotary-tables-core-0.16.1.json

The chunks of the rank are built as those of drawn layouts are (`simcore/verify/real/drawn_megatron.py`), on meta, and
stored in the compute dtype as Float16Module does. Then each rotary embedding is asked as the forward pass of its layer
asks, for 512 positions: core's `MultiLatentAttention` for cosines and sines where the rotation is fused, else for
angles (`multi_latent_attention.py:549`), as `GPTModel._preprocess` does of the model's own. `tables`: bytes of their
registered buffers, `angles`: of all other tensors of more than one row that are still alive, which core's cache of
32 entries holds. Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import gc
import random
from typing import Any

from draw_megatron import LATENT, PRESETS, layout, small, stages
from drawing import Case, by_name, maybe, numbered, print_apart

SEED, COUNT = 20261201, 60
SEQ = 512
FAMILIES = (*LATENT * 2, "gpt_oss", "llama")
FULL = {"deepseek_v2": "deepseek-v2-lite", "deepseek_v3": "deepseek-v3", "gpt_oss": "gpt-oss-20b",
        "llama": "llama-3.1-8b"}


def one(rng: random.Random) -> Case:
    """A small model whose layers suit the pipeline, or one of full size."""
    family = rng.choice(FAMILIES)
    case = layout(rng, sparse=family != "llama")
    if rng.random() < 0.25:
        case |= {"preset": FULL[family]}
    else:
        count, cut = stages(rng, case, hybrid=False)
        case |= {"preset": PRESETS[family], "fields": small(rng, family, count), **cut}
        if family in LATENT:
            case["fields"]["qk_rope_head_dim"] = rng.choice((8, 16, 64))
    if family in LATENT:
        maybe(rng, case, 0.4, fused=True)
    maybe(rng, case, 0.2, dtype="float16")
    return case


def measured(case: Case) -> Case:
    """Bytes of tables and angles on the case's rank."""
    import torch
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
    from oracle.drawn_megatron import built_rank

    chunks, provider = built_rank({key: value for key, value in case.items() if key != "fused"})
    turning = [m for chunk in chunks for m in chunk.modules() if isinstance(m, RotaryEmbedding)]
    fused = case.get("fused") and provider.multi_latent_attention
    for m in turning:
        if fused and isinstance(m, YarnRotaryEmbedding):
            m.get_cached_cos_sin(SEQ, dtype=provider.params_dtype, packed_seq=False)
        else:
            m(SEQ, packed_seq=False)
    gc.collect()
    tables = {b.untyped_storage()._cdata: b for m in turning for b in m.buffers()}
    parameters = {p.untyped_storage()._cdata for chunk in chunks for p in (*chunk.parameters(), *chunk.buffers())}
    others: dict[int, int] = {}
    for t in gc.get_objects():
        if isinstance(t, torch.Tensor) and t.dim() > 1 and len(t) > 1 and t.dtype == torch.float32:
            storage = t.untyped_storage()
            if storage._cdata not in parameters:
                others[storage._cdata] = storage.nbytes()
    return {"tables": sum(b.numel() * b.element_size() for b in tables.values()), "angles": sum(others.values())}


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    return numbered("r", one)(seed, count)


if __name__ == "__main__":
    import sys

    import oracle.drawn_megatron  # noqa: F401 - slow: before the forks
    given = [int(word) for word in sys.argv[1:]] or [SEED, COUNT]
    print_apart(by_name(drawn(*given)), measured)
