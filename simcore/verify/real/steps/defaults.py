"""Keys of an FSDP2 case and their defaults; `tests/truth/README.md` says what they mean."""

from __future__ import annotations

from typing import Any

FSDP2_DEFAULTS: dict[str, Any] = dict(
    world=8, rank=0, dp_replicate=1, store_dtype="float32", mp_param="bfloat16", mp_reduce="float32", reshard=None,
    wrap="layers_root", ac="none", batch=1, seq=4096, optim="adamw_foreach", steps=2, ep=1, ep_mode="ignored",
    lora=None, mamba="fused_stub", grad_accum=1, accum_sync="last", forward_backward=True, prefetch=None,
    set_last_reshard=None, loss="hf_drop_logits", optim_in_bwd=False, optim_groups="one",
)  # fmt: skip
