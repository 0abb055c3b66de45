"""Tied embeddings of models that read images, which the text's configuration may say."""

from __future__ import annotations

import itertools
from typing import Any

from simcore.models.graph import build, model_config

FORWARDING = ("qwen2.5-vl-3b", "qwen2-vl-7b", "llava-1.5-7b", "pixtral-12b")


def test_a_text_that_ties_its_embeddings_ties_those_of_the_model() -> None:
    """transformers 5.23: `tie_word_embeddings` of either; for other families the model's alone."""
    for name, root, text in itertools.product((*FORWARDING, "qwen3-vl-4b"), (False, True), (False, True)):
        fields: dict[str, Any] = dict(model_config(name, None, ""))
        inside = fields["text_config"] | {"tie_word_embeddings": text}
        graph = build(fields | {"tie_word_embeddings": root, "text_config": inside}, "hf")
        assert graph.has_tied_head == (root or (text and name in FORWARDING)), (name, root, text)
