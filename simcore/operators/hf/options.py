"""Options of transformers' layers, set by the framework that trains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from simcore.models.blocks import Branch
from simcore.operators.automodel.options import AutomodelOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.options import ImplementationOptions
from simcore.recording.tape import Tape, Tensor

__all__ = ["AttentionImplementation", "Experts", "HfOptions", "LigerKernels", "Shards", "SharedSequences",
           "UnslothRelease"]

AttentionImplementation = Literal["sdpa", "eager", "flash_attention_2", "xformers"]
UnslothRelease = Literal["", "newest", "2024.12"]
SharedSequences = Literal["parts", "heads", "ring"]
Shards = Literal["dtensors", "tensors"]
Experts = Callable[[Tape, LayerWorkload, Branch, Tensor], Tensor]
"""(tape, run, branch, x) -> output of a block of experts, in x's shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LigerKernels:
    """Kernels of Liger's that take the place of transformers' own.

    `rope`: rotation; `rms_norm`: norms; `gated`: activation and product of an MLP. `in_classes`: classes were replaced
    before the model was made (LLaMA-Factory, axolotl), otherwise modules of an instance (transformers' Trainer): then
    norms of query and key are left as they are.
    """

    rope: bool = False
    rms_norm: bool = False
    gated: bool = False
    in_classes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HfOptions(ImplementationOptions):
    """Options of transformers' layers in one run; names of upstream's own options are kept.

    `checkpoints_frozen`: layers of a tower without a trained parameter are recomputed too. `math_attention`: torch's
    attention of grouped heads without a mask is plain operators, not a kernel.
    `experts_unit`: the experts are a separate data-parallel unit. `grouped_experts`: transformers' grouped products
    (experts_implementation: grouped_mm) instead of batched ones over equal groups of rows. `inv_freq`: stored dtype of
    the rotary frequencies. `casts_stream`: FSDP2's hook casts a hidden state and rotary tables in fp32 to the compute
    dtype before each layer. `is_of_hub`: the layers are those of the model's own repository; `has_expert_modules`: they
    are those of transformers 4, whose experts are modules. `has_input_buffers`: inputs that wait on the host come
    back into two buffers that stay on the device. `automodel`: NeMo Automodel trains the model, head and loss are
    its own, with these options. `autocast`: forward runs under torch.autocast. `liger`: Liger's kernels. `unsloth`:
    the release of Unsloth whose functions run the layers, "" none. `compile`: one kernel dequantises torchao's
    4-bit weight. `adapter_units`: each matrix of an adapter is a data-parallel unit of its own. `compiled_layers`:
    torch.compile runs on each decoder layer. `has_outlier_threshold`: LLM.int8() looks for outliers
    (llm_int8_threshold above 0). `wide_outputs`: FSDP2's hook casts what each layer puts out to fp32, and what the next
    is given back to the compute dtype. `checkpoints_parts`: norms, attention and MLP of a layer are checkpoints of
    their own. `wide_sdpa`: torch's attention is given query, key and value in fp32 (Gemma 4 under Automodel).
    `wide_logits`: accelerate casts the logits that the model returns to fp32 (convert_outputs_to_fp32).
    `casts_tower`: FSDP2's hooks cast images, and the rotary tables of each layer of a vision tower. `wide_tower`: what
    is neither packed nor a norm of a vision tower is in fp32, and with it what its layers hand on. `sequences`: how
    context parallel ranks attend: by exchanges of parts of heads that are joined (`parts`), of heads that are copied
    together (`heads`), or by torch's ring, with the inputs of transformers' Trainer (`ring`). `keeps_rows`: a gradient
    of all rows of the embedding, of which tp leaves a rank its own, stays between microbatches. `dispatches`: rows
    reach their experts by transformers' own exchange (`AllToAllEP`). `shards`: what tp ranks have of matrices; of plain
    tensors products are summed in place, and embedding and tied head are whole. `experts`: records a block of experts
    in the place of transformers' code. `head_parts`: ranks among which the head is cut where the trainer itself
    gathers its weight, 0 where a unit's hooks do, or nothing.
    """

    attn_implementation: AttentionImplementation = "sdpa"
    checkpoints_frozen: bool = True
    math_attention: bool = False
    experts_unit: bool = False
    grouped_experts: bool = False
    inv_freq: str = "fp32"
    casts_stream: bool = False
    is_of_hub: bool = False
    has_expert_modules: bool = False
    has_input_buffers: bool = False
    automodel: AutomodelOptions | None = None
    autocast: bool = False
    liger: LigerKernels = LigerKernels()
    unsloth: UnslothRelease = ""
    compile: bool = False
    adapter_units: bool = False
    compiled_layers: bool = False
    has_outlier_threshold: bool = True
    wide_outputs: bool = False
    checkpoints_parts: bool = False
    wide_sdpa: bool = False
    casts_tower: bool = False
    wide_logits: bool = False
    wide_tower: bool = False
    sequences: SharedSequences = "parts"
    keeps_rows: bool = False
    dispatches: bool = False
    shards: Shards = "dtensors"
    experts: Experts | None = None
    head_parts: int = 0

    @property
    def by_automodel(self) -> bool:
        """True if NeMo Automodel trains the model."""
        return self.automodel is not None

    @property
    def puts_out_fp32(self) -> bool:
        """`wide_outputs`, of the root too."""
        return self.wide_outputs

    def bytes_of_tokens(self, batch: int, seq: int, cp: int) -> int:
        """Bytes of a microbatch's tokens and labels; in a ring those of whole sequences, and what they need beside.

        transformers 5.23 `trainer.py`, _prepare_context_parallel_inputs: labels are padded by one and shifted, which is
        a copy but of one row, positions are one row that all sequences share. Tokens, labels, the mask of padding and
        both are cut in place, where a tensor is never made smaller (torch 2.13 `_context_parallel/_attention.py`,
        context_parallel: resize_); the parts that are written into them stay too, the last one twice.
        """
        if self.sequences != "ring":
            return 2 * 8 * batch * seq
        whole = batch * seq * cp
        return 8 * (4 * whole + (batch == 1) + max(seq * cp, batch * seq) + 6 * batch * seq)
