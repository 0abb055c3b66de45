"""GLM-5 in Megatron-Bridge: latent attention that sees the keys which an indexer has chosen, and since when.

Megatron-Bridge 067f987d `models/glm_moe_dsa/`, Megatron-LM d98e8a64 `core/transformer/experimental_attention_variant/`.
Layers of GLM-5.2 without an indexer take the keys of an earlier one on the same rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from simcore.models.blocks import Indexer, LatentAttention
from simcore.placement.job import Job

__all__ = ["BACKEND", "DISPATCHER", "check_chosen", "chooses_keys"]

BACKEND: Final = "dsa_kernel_backend"
"""The option that names kernels of attention and indexer."""
DISPATCHER: Final = ("flex", "hybridep", "Bridge 067f987d models/glm_moe_dsa/glm5_bridge.py:96")
"""The type of the dispatcher and its library, and where Bridge says so."""
_CONFIG: Final = "Megatron-LM d98e8a64 core/transformer/transformer_config.py"
_LAYERS: Final = "Megatron-LM d98e8a64 core/transformer/experimental_attention_variant"
_SPEC: Final = "Megatron-LM d98e8a64 core/models/gpt/experimental_attention_variant_module_specs.py"


def chooses_keys(job: Job) -> bool:
    """True if attention sees the keys alone that an indexer has chosen."""
    return any(_indexer(job, kind) is not None for kind in range(len(job.graph.kinds)))


def _indexer(job: Job, kind: int) -> Indexer | None:
    """Indexer of the layers with the number `kind`."""
    blocks = (branch.block for branch in job.graph.kinds[kind].branches)
    return next((block.indexer for block in blocks if isinstance(block, LatentAttention)), None)


def check_chosen(job: Job, options: Mapping[str, object], chunks: Sequence[Sequence[int]], *,
                 sequence_parallel: bool) -> None:
    """Raises IllegalLayout for what core or Bridge does not do with attention that sees chosen keys.

    `chunks`: numbers of the layers of each part of the pipeline; `sequence_parallel`: it is on.
    """
    if not chooses_keys(job):
        if BACKEND in options:
            raise job.illegal(f"framework_options.{BACKEND}", "the model's attention has no indexer of keys",
                              f"{_CONFIG}:340")
        return
    if not job.scenario.framework_version.startswith("main"):
        raise job.illegal("framework_version", f"Bridge 0.3.1 has no bridge for {job.graph.architecture.family}; use "
                          "framework_version: main 2026-08-22", "Bridge 067f987d models/glm_moe_dsa/")
    _check_options(job, options)
    if job.mesh.tp > 1 and not sequence_parallel:
        raise job.illegal("training.sequence_parallel", "AbsorbedMLA requires sequence_parallel when "
                          "tensor_model_parallel_size > 1", f"{_LAYERS}/absorbed_mla.py:171")
    if any((index := _indexer(job, kind)) is not None and index.listed for kind in range(len(job.graph.kinds))):
        raise job.illegal("model", "indexer_types and index_topk_pattern: Bridge reads index_topk_freq and "
                          "index_skip_topk_offset alone, and would build other layers",
                          "Bridge 067f987d models/glm_moe_dsa/glm5_bridge.py:136")
    for chunk in chunks:
        if job.graph.branches and not set(chunk) & set(job.graph.blocks):
            raise job.illegal("training.pipeline", "Experimental attention variant is not supported with "
                              "get_gpt_decoder_layer_specs: beside multi-token prediction each part of the pipeline "
                              "needs a decoder layer", "Bridge 067f987d models/gpt_provider.py:364; Megatron-LM "
                              "d98e8a64 core/models/gpt/gpt_layer_specs.py:572")
        _check_lender(job, chunk)


def _check_options(job: Job, options: Mapping[str, object]) -> None:
    exchange = options.get("cp_comm_type", "all_gather")
    for key, refused, said, rule in (
            ("apply_rope_fusion", options.get("apply_rope_fusion"), "RoPE fusion is not supported for DSAttention",
             f"{_CONFIG}:3163"),
            ("cp_comm_type", job.mesh.cp > 1 and exchange != "all_gather", "DSAttention context parallelism currently "
             "supports cp_comm_type=allgather only.", f"{_CONFIG}:3171"),
            ("transformer_impl", options.get("transformer_impl") == "local", "Experimental GPT decoder block spec only "
             "supports transformer engine implementation for now.", f"{_SPEC}:498")):
        if refused:
            raise job.illegal(f"framework_options.{key}", said, rule)


def _check_lender(job: Job, chunk: Sequence[int]) -> None:
    """Refuses a part of the pipeline with a layer whose keys a layer of another part has chosen."""
    for number in chunk:
        index = _indexer(job, job.graph.layers[number].kind)
        if index is None:
            continue
        if not index.borrows:
            return
        path = job.graph.layers[number].path
        raise job.illegal("training.pipeline", f"DSA index-share pipeline split is invalid: {path} reuses top-k "
                          "indices of a layer that is not earlier in this pipeline stage. Choose a layout where each "
                          "stage starts on a computing layer", f"{_SPEC}:395")
