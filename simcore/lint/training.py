"""Packing, lengths, formats of states, and recomputing that does not happen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.lint.finding import Found
from simcore.lint.rule import Example, Rule
from simcore.lint.subject import Subject

__all__ = ["RULES"]

_FLASH: Final = ("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2",
                 "kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3")
"""TRL 1.16.0 trainer/sft_trainer.py FLASH_ATTENTION_VARIANTS."""
_APART: Final = (*_FLASH, "flex_attention", "xformers", "sage", "kernels-community/sage-attention", "sdpa", "eager")
"""axolotl 067b021c utils/schemas/config.py attn_decontaminates_packing."""
_FLAGS: Final = ("flash_attention", "sdp_attention", "flex_attention", "xformers_attention", "sage_attention",
                 "eager_attention", "gemma4_hybrid_attn_impl")
"""Older keys of axolotl, each for one implementation (`utils/schemas/enums.py` LEGACY_ATTN_FLAG_TO_IMPL)."""
_NARROW: Final = frozenset({"bf16", "fp16"})
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_seq_len")


def _find_mixed_packs(subject: Subject) -> Iterator[Found]:
    """Packs whose samples see each other, because the attention takes a row for one sequence."""
    attention = subject.look("attn_implementation", "model_init_kwargs.attn_implementation")
    if subject.format == "trl" and subject.look("packing") is True and subject.look("packing_strategy") != "wrapped":
        if attention not in _FLASH:
            yield _mixed(subject, "packing", attention or "sdpa", "TRL 1.16.0 trainer/sft_trainer.py")
    elif (subject.format == "axolotl" and subject.look("sample_packing") is True and attention not in _APART
          and not any(subject.look(flag) for flag in _FLAGS)):
        yield _mixed(subject, "sample_packing", attention or "attention by default",
                     "axolotl 067b021c utils/schemas/validation.py check_sample_packing_without_attention")


def _mixed(subject: Subject, key: str, attention: str, source: str) -> Found:
    return Found(subject.line(key), f"samples of a pack may attend to each other: {attention} is not known to tell "
                 "them apart", "attn_implementation: flash_attention_2", source=source)


def _find_long(subject: Subject) -> Iterator[Found]:
    """Sequences beyond the model's positions; the longest sample of a pack where it is known."""
    longest = subject.says("training.packed_length")
    if longest is None and subject.says("training.lengths") != "packed":
        longest = subject.says("training.seq_len")
    key = "training.seq_len" if subject.says("training.packed_length") is None else "training.packed_length"
    limits = [subject.config[name] for name in _POSITIONS if isinstance(subject.config.get(name), int)]
    if isinstance(longest, int) and limits and longest > limits[0] and "training.seq_len" not in subject.assumed:
        yield Found(subject.where(key), f"sequences of {longest:,} tokens, and the model has {limits[0]:,} positions",
                    f"at most {limits[0]:,}, or a scaling of its rotary embedding")


def _find_narrow_states(subject: Subject) -> Iterator[Found]:
    """States of Adam in 16 bits that no key asks for: they follow the format of the parameters."""
    if subject.legal is None or subject.scenario is None or subject.scenario.training.method != "full":
        return
    graph, framework = subject.legal.job.graph, subject.legal.framework
    weight = next((spec for specs in graph.tensors for spec in specs if spec.module == "linear" and spec.is_owned
                   and not spec.stored), None)
    if weight is None or subject.scenario.training.optimizer.moments != "auto":
        return
    policy = framework.policy(weight)
    formats = {layout.dtype for layout in (policy.at_rest, *(layout for _, layout in policy.optimizer_states))}
    if len(policy.optimizer_states) > 1 and formats <= _NARROW:
        yield Found(_first(subject, "training.precision.params", "training.optimizer"),
                    f"parameters and both moments of the optimizer are in {policy.at_rest.dtype}, without a copy in "
                    "fp32: small updates are rounded away",
                    "parameters in fp32 with products in 16 bits, if that is not meant")


def _first(subject: Subject, *keys: str) -> str:
    return subject.where(next((key for key in keys if subject.says(key) is not None), keys[-1]))


def _find_idle_checkpoints(subject: Subject) -> Iterator[Found]:
    """Settings of checkpointing where layers are not recomputed."""
    kwargs = "gradient_checkpointing_kwargs"
    if subject.format not in ("axolotl", "trl") or not subject.look(kwargs):
        return
    asked = subject.look("gradient_checkpointing")
    if asked is None and subject.format == "trl":
        return  # on by default
    if not asked and not subject.look("fsdp_config.activation_checkpointing", "activation_offloading",
                                      "fsdp_config.fsdp_activation_checkpointing"):
        yield Found(subject.line(kwargs), f"{kwargs} says how layers are recomputed, and none is",
                    "gradient_checkpointing: true, or leave it out")


def _find_refused_checkpoints(subject: Subject) -> Iterator[Found]:
    """Recomputing that the model's own code does not do; axolotl's patch needs packs."""
    name = str(subject.look("base_model") or "").lower()
    asked = subject.look("gradient_checkpointing") and not subject.look("sample_packing")
    if subject.format == "axolotl" and "nemotron-h" in name and asked:
        yield Found(subject.line("gradient_checkpointing"), "layers of Nemotron-H are recomputed by axolotl's patch "
                    "for packs alone, which stops the run", "sample_packing: true, or no gradient_checkpointing")


_TUNE: Final = "base_model: nvidia/Nemotron-H-8B-Base-8K\ngradient_checkpointing: true\n"

RULES: Final = (
    Rule("packing-without-flash-attention", "warning", "Samples of a pack are not kept apart by the attention.",
         "TRL 1.16.0 trainer/sft_trainer.py; axolotl 067b021c utils/schemas/validation.py",
         Example("trl", "packing: true\nattn_implementation: sdpa\n",
                              "packing: true\nattn_implementation: flash_attention_2\n"), _find_mixed_packs),
    Rule("sequence-above-positions", "warning", "Sequences are longer than the model's positions.",
         "config.json of the model: max_position_embeddings",
         Example("axolotl", "sequence_len: 65536\n", "sequence_len: 32768\n"), _find_long),
    Rule("optimizer-in-16-bits", "note", "States of the optimizer are in 16 bits because the parameters are.",
         "torch 2.13 optim/adamw.py _init_group: zeros_like(parameter)",
         Example("automodel", "seed: 7\n", "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
                 "pretrained_model_name_or_path: Qwen/Qwen3-8B, torch_dtype: fp32}\n"), _find_narrow_states),
    Rule("checkpointing-settings-without-checkpointing", "warning",
         "Settings of recomputing stand there, and nothing is recomputed.",
         "axolotl 067b021c core/builders/base.py: only with gradient_checkpointing; transformers 5.23 trainer.py",
         Example("axolotl", "gradient_checkpointing_kwargs: {use_reentrant: false}\n",
                 "gradient_checkpointing_kwargs: {use_reentrant: false}\ngradient_checkpointing: true\n"),
         _find_idle_checkpoints),
    Rule("recompute-refused", "error", "Layers cannot be recomputed with this model's code.",
         "axolotl 067b021c utils/schemas/validation.py check_nemotron_h_gradient_checkpointing",
         Example("axolotl", _TUNE, f"{_TUNE}sample_packing: true\n"), _find_refused_checkpoints),
)
