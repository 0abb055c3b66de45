"""Keys of axolotl's schema (`utils/schemas/config.py`) that change layers, formats or offload, and are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["refuse_rest"]

_OFF: Final = (None, False, "", 0)
_WHAT: Final[Mapping[str, str]] = {
    "torch_compile": "layers by torch.compile",
    "batch_flattening": "a microbatch that is one row of unpadded samples",
    "chunked_cross_entropy": "a loss over chunks of the logits",
    "use_eaft": "the loss of EAFT",
    "layer_offloading": "layers whose parameters wait on the host",
    "ple_cpu_offload": "embeddings of layers that wait on the host",
    "embeddings_skip_upcast": "embeddings that stay in fp32 behind a packed base",
    "fp32_norms": "norms in fp32 beside layers of 16 bits",
    "float32": "a model in fp32 beside bf16",
    "selective_checkpointing": "layers of which a part is recomputed",
    "auto_find_batch_size": "a batch size that is found by trials",
    "sage_attention": "attention by SageAttention",
    "flash_attn_d512": "a flash attention of heads of 512",
    "large_head_attention": "an attention of large heads",
    "sdpa_varlen": "attention over rows of several samples by SDPA",
    "scaling_softmax": "an attention whose scores are scaled",
    "lisa_n_layers": "a few layers that train at a time (LISA)",
    "use_pose": "samples with skipped positions (PoSE)",
    "shrink_embeddings": "a vocabulary that shrinks",
    "fix_untrained_tokens": "rows of the embedding that are replaced",
    "deepcompile": "DeepSpeed's compiler",
    "gpu_memory_limit": "a model that is spread over the GPUs of one rank",
    "max_memory": "a model that is spread over the GPUs of one rank",
    "sequence_parallel_degree": "samples that are cut over ranks",
    "qlora_sharded_model_loading": "a packed base that is read in shards",
    "model_kwargs": "arguments of the model that the recipe changes",
    "overrides_of_model_kwargs": "arguments of the model that the recipe changes",
    "optim_target_modules": "an optimizer of some modules alone",
    "trainer_cls": "a trainer of one's own",
    "mora": "adapters by MoRA",
    "liger_swiglu": "the older name of liger_glu_activation",
    "noisy_embedding_alpha": "the older name of neftune_noise_alpha",
}
"""Keys, each with what is refused where it is on."""
_GONE: Final = ("max_packed_sequence_len", "rope_scaling", "rpo_alpha", "s2_attention", "flash_attn_rms_norm")
"""Keys of old releases at which axolotl stops (`utils/schemas/deprecated.py`)."""

_DROPPED: Final = ("eval_table_max_new_tokens", "flash_attn_fuse_qkv", "unsloth_cross_entropy_loss", "unsloth_lora_mlp",
                   "unsloth_lora_o", "unsloth_lora_qkv", "unsloth_rms_norm", "unsloth_rope")
"""Keys of releases 0.4 to 0.16 that later ones no longer have."""
_PASSES_OVER: Final = ("a key of older releases: axolotl 067b021c passes over it, as over every key that its schema "
                       "does not have; the release that had it is not simulated")


def refuse_rest(reader: Reader, draft: Draft) -> None:
    """Refuses each of the keys that is on, or tells that axolotl does, and lists those that are off."""
    draft.unmodelled(reader.matching(*_DROPPED), _PASSES_OVER)
    for one in reader.matching(*_GONE, *(f"{key}.*" for key in _GONE)):
        if one.value in _OFF:
            draft.idle(one, "off")
        else:
            draft.use(one)
            draft.fail(one.where, f"{one.key}: no longer supported (utils/schemas/deprecated.py): axolotl stops")
    for key, what in _WHAT.items():
        for one in reader.matching(key, f"{key}.*"):
            if one.value in _OFF or (one.key == "sequence_parallel_degree" and one.value == 1):
                draft.idle(one, "the default")
            else:
                draft.refuse(one, what)
