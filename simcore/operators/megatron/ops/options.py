"""Options of Megatron-Core's layers, under the names of its own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simcore.recording.options import ImplementationOptions

__all__ = ["FUSED_MULTIPLE", "AttentionBackend", "ContextParallelComm", "Dispatcher", "FlexBackend", "MegatronOptions"]

AttentionBackend = Literal["fused", "flash", "unfused"]
ContextParallelComm = Literal["p2p", "a2a", "all_gather", "a2a+p2p"]
Dispatcher = Literal["alltoall", "flex", "allgather"]
FlexBackend = Literal["deepep", "hybridep"]
FUSED_MULTIPLE: Final = 256
"""Multiple of rows that experts of TransformerEngine's operation fuser take (main 2026-08-22 `moe_utils.py`:1473)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronOptions(ImplementationOptions):
    """Options of Megatron-Core's layers in one run; unexplained names are those of its configuration.

    `dispatcher`: moe_token_dispatcher_type. `moe_router_dtype`: of logits and probabilities of routers by softmax.
    `main_grad_bytes`: size of an element of main gradients. `gradient_buckets`: main gradients are made bucket by
    bucket in backward (Megatron-FSDP). `apply_rope_fusion`: None where it is not set: rotary embeddings of dense
    attention are fused then, those of latent attention are not. `fuses_dense_mlp`: TransformerEngine's operations are
    the dense MLP. `core_attention`: attention that is not fused is core's own, not TransformerEngine's.
    `hierarchical_context_parallel_sizes`: ranks that exchange heads, and those of a ring, with cp_comm_type a2a+p2p;
    `sends_output_again`: there backward exchanges the output too, which is kept as it was handed on
    (TransformerEngine up to 2.14).
    `compiles_delta_net`: inputs of the gated delta rule are made by compiled code (main). `shares_recomputed`: outputs
    computed again take the place of discarded ones without a copy (core 0.17). Of fp8 and
    fp4: `fp8_transposes`: columns of quantised weights are kept beside the rows; `keeps_fp8_weights`: quantised weights
    outlast a pass; `transposes_weights_again`: but not their columns, which each backward makes; `quant_recipe`:
    recipes of single linears, as patterns. `moe_expert_rank_capacity_factor`: 0 where it is not set, see [Note: paged
    stash] in `operators/megatron/stash.py`, as are the options of the stash. `logprob_chunk_size`: tokens of a chunk of
    NeMo RL's log-probabilities, which then are the loss; 0: they are not. `reads_images`: the model has a vision tower:
    heads are rotated by the angles of each token, and sequences are embedded whole. `mtp_loss`: cross entropy of
    tokens of multi-token prediction where the model's own loss is none; "": the same as the model's.
    `mtp_detach_heads`: no gradient of theirs reaches the decoder, the embedding, or the output layer's weight (main).
    """

    dispatcher: Dispatcher = "alltoall"
    moe_flex_dispatcher_backend: FlexBackend = "deepep"
    moe_router_dtype: str = "fp32"
    moe_permute_fusion: bool = True
    use_fused_weighted_squared_relu: bool = True
    use_transformer_engine_op_fuser: bool = False
    fuses_dense_mlp: bool = False
    main_grad_bytes: int = 4
    gradient_accumulation_fusion: bool = True
    gradient_buckets: bool = False
    bias_activation_fusion: bool = True
    activation_func_fp8_input_store: bool = False
    apply_rope_fusion: bool | None = None
    attention_backend: AttentionBackend = "fused"
    core_attention: bool = False
    masked_softmax_fusion: bool = True
    cp_comm_type: ContextParallelComm = "p2p"
    hierarchical_context_parallel_sizes: tuple[int, ...] = ()
    sends_output_again: bool = False
    create_attention_mask: bool = False
    deterministic_mode: bool = False
    tp_comm_overlap: bool = False
    overlap_moe_expert_parallel_comm: bool = False
    compiles_delta_net: bool = False
    shares_recomputed: bool = False
    fp8_recipe: str = ""
    fp8_transposes: bool = False
    keeps_fp8_weights: bool = False
    fp8_dot_product_attention: bool = False
    transposes_weights_again: bool = False
    moe_router_padding_for_quantization: bool = False
    quant_recipe: str = ""
    moe_expert_rank_capacity_factor: float = 0.0
    moe_paged_stash: bool = False
    moe_paged_stash_page_size: int = 64
    moe_paged_stash_buffer_size_factor_cuda: float = 1.1
    moe_paged_stash_buffer_size_factor_cpu: float = 0.0
    logprob_chunk_size: int = 0
    reads_images: bool = False
    mtp_loss: str = ""
    mtp_detach_heads: bool = False

    def exchange(self, cp: int) -> tuple[int, int]:
        """Numbers of ranks that exchange heads with each other, and of ranks in a ring, of `cp` that share a sequence.

        TransformerEngine 2.18 `context_parallel.py`, attn_forward_func_with_cp.
        """
        if self.cp_comm_type == "a2a+p2p" and cp > 1:
            heads, ring = self.hierarchical_context_parallel_sizes
            return heads, ring
        return (cp, 1) if self.cp_comm_type == "a2a" else (1, cp)

    @property
    def loads_attention_mask(self) -> bool:
        """True if the data loader gives an attention mask to pipeline stages with an embedding or a loss.

        Option create_attention_mask.
        """
        return self.create_attention_mask
