"""Stand-ins for values that models with a vision tower read, which fake tensors have not, and for what a GPU runs.

The check that as many tokens as features are there does nothing, and the gradient of `masked_scatter`'s source has the
source's shape (`masked_select`); grids, places, lengths and windows are computed from a case's sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import probe_automodel_delta as own
import probe_automodel_step as steps
import torch
from nemo_automodel.components.models.gemma4_moe.parallelization import PARALLELIZER
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers import masking_utils, vision_utils
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.mistral3 import modeling_mistral3
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe

if "Qwen3VLCausalLMOutputWithPast" not in vars(modeling_qwen3_vl):  # transformers 5.18, which 0.7.0 pins, has it
    @dataclass
    class Output(CausalLMOutputWithPast):
        """An output that names the places that images take."""

        rope_deltas: torch.Tensor | None = None

    modeling_qwen3_vl.Qwen3VLCausalLMOutputWithPast = Output

    @dataclass
    class Hidden(BaseModelOutputWithPast):
        """The same without logits."""

        rope_deltas: torch.Tensor | None = None

    modeling_qwen3_vl_moe.Qwen3VLMoeModelOutputWithPast = Hidden

from nemo_automodel.components.models.qwen3_moe import layers as moe_layers
from nemo_automodel.components.models.qwen3_vl_moe import model as sparse_vl

__all__ = ["Normed", "Numbers", "Sizes", "grid", "spread", "stand_in", "stand_in_for_filled", "stand_in_for_grids",
           "varlen"]


class Numbers(list[int]):
    """Numbers that a model reads, where tensors have no values."""

    def tolist(self) -> list[int]:
        return list(self)

    def __getitem__(self, at: Any) -> Any:
        return Numbers(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def __sub__(self, other: list[int]) -> Numbers:
        return Numbers(one - two for one, two in zip(self, other, strict=True))

    def __floordiv__(self, by: int) -> Numbers:
        return Numbers(one // by for one in self)

    def prod(self, _dim: int) -> Numbers:
        return self


class Sizes(list[tuple[int, int]]):
    """Sides of images, which a model reads as a tensor of numbers."""

    def __floordiv__(self, by: int) -> Sizes:
        return Sizes((height // by, width // by) for height, width in self)

    def prod(self, dim: int) -> Numbers:
        assert dim == -1
        return Numbers(height * width for height, width in self)


AS_TENSOR = torch.as_tensor


def as_tensor(data: Any, **given: Any) -> Any:
    """`torch.as_tensor` of all but sides of images, which stay as they are."""
    return data if isinstance(data, Sizes) else AS_TENSOR(data, **given)


class Scattered(torch.autograd.Function):
    """`masked_scatter` whose source gets a gradient of its own shape."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.shape = source.shape
        return torch.ops.aten.masked_scatter(x, mask, source)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        x, _, source = ctx.needs_input_grad
        made = grad.masked_fill(mask, 0) if x else None
        return made, None, grad.new_empty(ctx.shape) if source else None


class Taken(torch.autograd.Function):
    """`x[mask, :]` of so many rows; the gradient is put into zeros, in a new tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: int) -> torch.Tensor:
        ctx.shape = x.shape
        return x.new_empty(rows, x.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.new_zeros(ctx.shape).clone(), None


class Put(torch.autograd.Function):
    """`x[mask, :] = values`, whose gradients are a copy with zeros put into it, and what was put."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        ctx.shape = values.shape
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        zeros = grad.new_zeros(ctx.shape)
        rest = grad.clone()
        del zeros
        return rest, grad.new_empty(ctx.shape)


def fed(_model: Any, hidden: torch.Tensor, _mask: torch.Tensor, features: torch.Tensor) -> Any:
    """`_deepstack_process`, whose events `probe_vision.py` has measured."""
    hidden = hidden.clone()
    local = Taken.apply(hidden, features.shape[0]) + features
    return Put.apply(hidden, local)


def scattered(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """A function, so that it is a method of tensors."""
    return Scattered.apply(x, mask, source)


AT = torch.Tensor.__getitem__


def stand_in_for_filled(case: dict[str, Any]) -> None:
    """Numbers that Gemma 4 reads off a mask: how many averages are an image's, and tokens of the sequence."""
    vision, images = case["fields"]["vision_config"], case["batch"] * case["images"]
    rows, columns = (side // vision["patch_size"] // vision["pooling_kernel_size"] for side in case["sides"])
    tokens = rows * columns

    def at(x: torch.Tensor, index: Any) -> Any:
        if not isinstance(index, torch.Tensor) or index.dtype != torch.bool:
            return AT(x, index)
        if index.ndim == x.ndim:
            return x.new_empty(images * tokens * x.shape[-1])
        return x.new_empty(images * tokens, x.shape[-1])

    def features(self: Any, pixels: torch.Tensor, places: torch.Tensor, **given: Any) -> Any:
        found = self.vision_tower(pixel_values=pixels, pixel_position_ids=places, **given)
        found.pooler_output = torch.split(self.embed_vision(inputs_embeds=found.last_hidden_state), [tokens] * images)
        return found

    torch.Tensor.__getitem__ = at  # type: ignore[method-assign,assignment]
    modeling_gemma4.Gemma4Model.get_image_features = features
    modeling_gemma4.F.one_hot = lambda x, count: x.new_zeros((*x.shape, count))


def fed_in_place(_model: Any, hidden: torch.Tensor, _mask: torch.Tensor, features: torch.Tensor) -> Any:
    """`_deepstack_process` of Automodel's model with experts, which puts into what it is given."""
    return Put.apply(hidden, Taken.apply(hidden, features.shape[0]).clone() + features)


class Normed(torch.autograd.Function):
    """The custom operator of `rms_norm: torch_fp32` (models/common/utils.py, _float32_rms_norm_impl), compiled."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class Varlen(torch.autograd.Function):
    """flash-attn 2 of sequences that lie end to end: what it keeps, and what its backward makes."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: int) -> torch.Tensor:
        out = q.new_empty(q.shape)
        ctx.save_for_backward(q, k, v, out, q.new_empty((q.shape[2], q.shape[1]), dtype=torch.float32))
        ctx.ends = ends
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, _, _ = ctx.saved_tensors
        rows, (heads, dim) = q.shape[1] + 128 * ctx.ends, q.shape[2:]
        made = tuple(one.new_empty(one.shape) for one in (q, k, v))
        _sums = [q.new_empty(shape, dtype=torch.float32) for shape in (
            (heads, rows), (rows, heads, -(-dim // 32) * 32))]
        _wide = [q.new_empty(q.shape) for _ in range(2 * (k.shape[2] < heads))]
        return (*made, None)


def varlen(_module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **given: Any) -> Any:
    """`flash_attention_forward` of [batch, heads, sequence, d] with the ends of sequences."""
    return Varlen.apply(*(one.transpose(1, 2) for one in (q, k, v)), len(given["cu_seq_lens_q"]) - 1), None


def spread(_model: Any, embeds: torch.Tensor, mask: torch.Tensor, deep: list[torch.Tensor]) -> Any:
    """`_shard_multimodal_inputs_for_cp` on one rank: features are put into whole sequences, then taken out again."""
    aligned = [features.new_zeros(*mask.shape, features.shape[-1]) for features in deep]
    return embeds, mask, [whole.new_empty(features.shape) for whole, features in zip(aligned, deep, strict=True)]


def grid(case: dict[str, Any]) -> int:
    """Number of patches of an image."""
    rows, columns = (side // case["fields"]["vision_config"]["patch_size"] for side in case["sides"])
    return rows * columns


def stand_in_for_grids(case: dict[str, Any]) -> None:
    """Numbers that Qwen computes of an image's grid: lengths of attention, and positions without values."""
    vision, images, count = case["fields"]["vision_config"], case["batch"] * case["images"], grid(case)
    if case["fields"]["model_type"].startswith(("qwen3_vl", "qwen3_5")):
        stand_in_for_places(images, count)
        return
    with unset_fake_temporarily():
        sides = [1, *(side // vision["patch_size"] for side in case["sides"])]
        _, ends = vision_utils.get_vision_window_index(
            torch.tensor([sides] * images), vision["spatial_merge_size"], vision["window_size"], vision["patch_size"])
        ends = Numbers(ends.tolist())
    model = modeling_qwen2_5_vl
    model.get_vision_attention_seqlens = lambda *_, **__: (Numbers(range(0, images * count + 1, count)), None)
    model.get_max_seqlen = lambda *_, **__: None
    model.get_vision_position_ids = lambda *_, **__: torch.empty((images * count, 2), dtype=torch.int64)
    model.get_vision_window_index = lambda *_, **__: (torch.empty(images * count // 4, dtype=torch.int64), ends)
    model.Qwen2_5_VLModel.get_rope_index = lambda _, ids, *__, **___: (
        torch.empty((3, *ids.shape), dtype=torch.int64), torch.empty(0))


def stand_in_for_places(images: int, count: int) -> None:
    """The same of Qwen 3 VL and Qwen 3.5, and which learned positions are read."""
    rows = images * count
    for model, inner in ((modeling_qwen3_vl, modeling_qwen3_vl.Qwen3VLModel),
                         (modeling_qwen3_vl_moe, modeling_qwen3_vl_moe.Qwen3VLMoeModel),
                         (modeling_qwen3_5, modeling_qwen3_5.Qwen3_5Model)):
        model.get_vision_attention_seqlens = lambda *_, **__: (Numbers(range(0, rows + 1, count)), count)
        model.get_vision_position_ids = lambda *_, **__: torch.empty((rows, 2), dtype=torch.int64)
        model.get_vision_interpolation_indices_and_weights = lambda *_, **__: (
            torch.empty((rows, 4), dtype=torch.int64), torch.empty((rows, 4)))
        inner.get_rope_index = lambda _, ids, *__, **___: (
            torch.empty((3, *ids.shape), dtype=torch.int64), torch.empty(0))
    modeling_qwen3_vl.Qwen3VLTextModel._deepstack_process = fed
    sparse_vl.Qwen3VLMoeTextModelBackend._deepstack_process = fed_in_place


def stand_in() -> None:
    torch.Tensor.__bool__ = lambda self: True  # type: ignore[method-assign]  # whether there are images, or videos
    own.stand_in()
    steps.stand_in()
    moe_layers.apply_rotary_emb_qk = lambda q, k, table, **_: own.Rotated.apply(q, k, table)
    for modeling in (modeling_gemma3, modeling_gemma4, modeling_mistral3, modeling_qwen2_5_vl, modeling_qwen3_5,
                     modeling_qwen3_vl, modeling_qwen3_vl_moe):
        modeling.torch_compilable_check = lambda *_: None
    # Automodel's own class of these layers replays whole ones (components/models/gemma4_moe/model.py:886).
    modeling_gemma4.Gemma4ForConditionalGeneration.parallelizer = PARALLELIZER
    modeling_gemma4.Gemma4ForConditionalGeneration.kv_sharing_survives_checkpoint_replay = True
    # transformers 5.18.0, which Automodel 0.7.0 asks for, gives the tower of audio what the model is given.
    modeling_gemma4.Gemma4AudioModel._supports_sdpa = True
    of_layers = masking_utils.LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING
    of_layers["full_attention"] = steps.masked(of_layers["full_attention"])
    own_mask = modeling_gemma4.create_causal_mask
    modeling_gemma4.create_causal_mask = lambda **given: (
        own_mask if "or_mask_function" in given else steps.masked(own_mask))(**given)
    own.qwen3_5.is_indexed_packed_mask = lambda *_: False
    own.qwen3_5.create_causal_mask = lambda **_: None  # transformers looks whether any token is padding
    torch.as_tensor = as_tensor
    torch.Tensor.masked_scatter = scattered  # type: ignore[assignment]
