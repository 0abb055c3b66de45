"""Qwen 3.5, dense or with experts: the tower of Qwen 3 VL, of which only the end feeds the decoder.

As transformers 5.23 `Qwen3_5ForConditionalGeneration` and `Qwen3_5MoeForConditionalGeneration`. The decoder is that of
`qwen3_5_text` or `qwen3_5_moe_text` (`families/qwen3_next`), one module deeper (`model.language_model`). Published
checkpoints have modules of multi-token prediction, which these classes do not load; `mtp_num_layers` asks for them.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Mtp
from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import qwen3_next
from simcore.models.vision.around import part_of, with_layers
from simcore.models.vision.placed_tower import with_placed_tower

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Qwen3_5Config` or `Qwen3_5MoeConfig`.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    text = with_layers(config, part_of(config, "text_config", f"{family}_text"), tied=False)
    vision = part_of(config, "vision_config", family, f"{family}_vision")
    if vision.fields.get("deepstack_visual_indexes"):
        raise vision.fail("deepstack_visual_indexes", "nothing reads it: no layer of this tower feeds the decoder")
    return with_placed_tower(config, vision, _seeing(qwen3_next.architecture(text)))


def _seeing(made: Architecture) -> Architecture:
    """The decoder, whose modules of multi-token prediction know that images are in its sequences."""
    return replace(made, parts=tuple((path, replace(kind, block=replace(kind.block, sees=True)) if isinstance(
        kind.block, Mtp) else kind) for path, kind in made.parts))


FAMILY = ModelFamily(architecture, further_fields=("vocab_size",))
