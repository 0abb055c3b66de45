"""Qwen 3 VL, dense or with experts: a tower whose layers feed several of the decoder.

As transformers 5.23 `Qwen3VLForConditionalGeneration` and `Qwen3VLMoeForConditionalGeneration`. Features of the layers
`deepstack_visual_indexes` of the tower (`placed_tower`) are added to image tokens behind the first layers of the
decoder, one each. The decoder is Qwen 3 with positions by time, row and column, one module deeper
(`model.language_model`); with experts the weights of a token's always add up to one (`Qwen3VLMoeTextTopKRouter`).
"""

from __future__ import annotations

from simcore.models.config import Architecture, Config, ModelFamily
from simcore.models.families import qwen
from simcore.models.vision.around import part_of, with_layers
from simcore.models.vision.placed_tower import with_placed_tower

__all__ = ["FAMILY"]


def architecture(config: Config) -> Architecture:
    """Layers and sizes of a model with a `Qwen3VLConfig` or `Qwen3VLMoeConfig`.

    InputError for values that are not modelled.
    """
    family = str(config.fields["model_type"])
    text = with_layers(config, part_of(config, "text_config", f"{family}_text"), tied=False)
    vision = part_of(config, "vision_config", family, f"{family}_vision")
    return with_placed_tower(config, vision, qwen.architecture(text), _fed(vision))


def _fed(vision: Config) -> tuple[int, ...]:
    """Layers of the tower whose features enter the decoder, in rising order."""
    given, depth = vision.fields.get("deepstack_visual_indexes", [8, 16, 24]), vision.integer("depth", default=27)
    if not isinstance(given, list) or any(type(one) is not int or not 0 <= one < depth for one in given) or (
            given != sorted(set(given))):
        raise vision.fail("deepstack_visual_indexes", f"expected rising numbers of layers below depth {depth}, got "
                          f"{given!r}")
    return tuple(given)


FAMILY = ModelFamily(architecture, further_fields=("vocab_size",))
