"""Attention of a recipe, or the one that transformers chooses where none is named."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.modules import family_of
from simcore.recipes.reader import Taken

__all__ = ["attend_by_ring", "read_attention"]

_KEY: Final = "framework_options.attn_implementation"
_RELEASE: Final = "transformers 5.23.0"
_WITHOUT_SDPA: Final = frozenset({"gemma2", "gpt_oss"})
"""Families whose `_supports_sdpa` is false: scores below a cap, and sinks."""
_SERVED: Final = ("eager", "sdpa", "flash_attention_2", "kernels-community/vllm-flash-attn3")
_ALIKE: Final = {"kernels-community/flash-attn2": "flash_attention_2"}


def attend_by_ring(draft: Draft, degree: Taken[int]) -> None:
    """Fails where another attention than torch's SDPA is asked of `degree` ranks that share a sequence by its ring."""
    said = draft.values.get("framework_options", {}).get("attn_implementation", "sdpa")
    if said != "sdpa":
        draft.fail(degree.where, f"{degree.key}: {_ring_refuses(said)}")


def _ring_refuses(name: str) -> str:
    return (f"Context parallelism is supported only with SDPA attention, you are using {name} ({_RELEASE} trainer.py "
            "_prepare_context_parallel_inputs)")


def read_attention(draft: Draft, asked: Taken[str] | Taken[bool] | None, name: str = "", source: str = "") -> None:
    """Writes the attention `name` that `asked` stands for; transformers' own choice is SDPA where the model has it."""
    name = _ALIKE.get(name, name)
    shares = draft.values.get("mesh", {}).get("cp", 1) > 1
    has_none = family_of(draft.answers.settings.get("model") or draft.values.get("model")) in _WITHOUT_SDPA
    if shares and asked is not None and name != "sdpa":
        draft.use(asked)
        draft.fail(asked.where, f"{asked.key}: {_ring_refuses(name)}")
    elif asked is None and has_none:
        draft.default(_KEY, "eager", _RELEASE, "modeling_utils.py:1872: the model has no SDPA")
    elif asked is None:
        draft.release_default("attn_implementation", "sdpa", _RELEASE, "modeling_utils.py: SDPA where the model has it")
    elif name not in _SERVED:
        draft.refuse(asked, f"attention by {name}")
    elif name == "sdpa" and has_none:
        draft.use(asked)
        draft.fail(asked.where, f"{asked.key}: the model has no SDPA, at which {_RELEASE} stops "
                                "(modeling_utils.py:1665)")
    else:
        draft.put(_KEY, asked, name, source)
