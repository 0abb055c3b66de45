"""Plans by which transformers 5.23 lets ranks share matrices (`base_model_tp_plan` of a family's configuration)."""

from __future__ import annotations

from typing import Final

__all__ = ["PLAIN"]

PLAIN: Final = ("arcee", "cohere2", "ernie4_5", "gemma", "gemma3_text", "granite", "llama", "mistral", "nemotron",
                "phi", "qwen2", "qwen3", "seed_oss", "starcoder2")
"""Dense families whose plan has linears by columns and by rows, the embedding, the head and norms of heads alone.

Steps of each are measured under FSDP2 (`tests/truth/draw_hf_tp.py`); DeepSpeed reads the same plan. Styles of a
mixture's plan: `frameworks/fsdp2/split/mixtures.py`.
"""
