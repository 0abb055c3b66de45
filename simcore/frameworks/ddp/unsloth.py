"""Unsloth's `FastLanguageModel` around transformers' Llama: its requirements and its settings.

unsloth 015bdef0 `models/llama.py`, patch_peft_model: its layer functions replace the model's if every linear of
attention and MLP has an adapter without dropout or bias; else they fall back, module by module. unsloth-zoo ce232d6c
`training_utils.py`, prepare_model_for_training: adapters are fp32, everything else stays as it is loaded.
`use_gradient_checkpointing: unsloth` is recompute: full with offload.activations: host.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.operators.hf.options import UnslothRelease
from simcore.placement.job import Draft, Job

__all__ = ["FAST_OPTION", "FAST_RELEASES", "adapter_dtype", "fast_layers"]

FAST_OPTION: Final = "FastLanguageModel"
FAST_RELEASES: Final[tuple[Any, ...]] = (True, False, "2024.12", 2024.12)
"""Releases; True: the newest that is described."""
_LINEARS: Final = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})


def fast_layers(job: Job, options: dict[str, Any]) -> UnslothRelease:
    """Returns the release of Unsloth whose layers the options ask for: "newest" or "2024.12"; "" for none.

    `options`: the framework options that the scenario sets, by name. NotYet for a job whose layers Unsloth does not
    replace, or that is not modelled.
    """
    if not options.get(FAST_OPTION):
        return ""
    at, training = f"framework_options.{FAST_OPTION}", job.scenario.training
    if training.method == "full":
        raise job.not_yet(at, "Unsloth's layers without adapters (full_finetuning)")
    if job.graph.architecture.family != "llama":
        raise job.not_yet(at, f"Unsloth's layers of {job.graph.architecture.family} (served: llama)")
    adapted = {spec.path.rpartition(".")[2] for specs in job.graph.tensors for spec in specs
               if spec.module == "linear" and any(other.path == f"{spec.path}.lora_a" for other in specs)}
    if adapted != _LINEARS:
        missing = ", ".join(sorted(_LINEARS - adapted)) or "none"
        raise job.not_yet(at, f"Unsloth's layers without an adapter of each linear (missing: {missing})")
    _check_variants(job, at)
    if options.get("attn_implementation") != "flash_attention_2":
        raise job.not_yet(at, "Unsloth's layers with another attention than flash_attention_2")
    if options.get("autocast") or options.get("prepare_model_for_kbit_training"):
        raise job.not_yet(at, "autocast around Unsloth's layers over fp32 parameters")
    if training.quantization.format == "int8":
        raise job.not_yet(at, "Unsloth's layers over LLM.int8() (load_in_8bit)")
    if training.lengths == "packed":
        raise job.not_yet(at, "packed sequences in Unsloth's layers")
    return "newest" if options[FAST_OPTION] is True else "2024.12"


def _check_variants(job: Job, at: str) -> None:
    """Refuses adapters for which Unsloth leaves its own functions of linears (`models/llama.py`, patch_peft_model)."""
    lora = job.scenario.training.lora
    if lora.dropout:
        raise job.not_yet(at, "Unsloth's layers with dropout of adapters, around PEFT's linears: it patches QKV, O and "
                          "MLP for lora_dropout = 0 alone (served: dropout: 0, or PEFT's layers without this option)")
    if lora.use_dora:
        raise job.not_yet(at, "Unsloth's layers with DoRA, around PEFT's linears (served: PEFT's layers without this "
                          "option)")


def adapter_dtype(job: Draft, options: dict[str, Any], stored: str) -> str:
    """Returns the dtype of LoRA's adapters: as the scenario asks, else fp32 with Unsloth's layers, else `stored`.

    `options`: the framework options that the scenario sets, by name. `stored`: dtype of the model's weights at rest.
    """
    requested = job.scenario.training.lora.dtype
    if not options.get(FAST_OPTION):
        return stored if requested == "auto" else requested
    return job.auto("training.lora.dtype", requested, "fp32", "unsloth-zoo ce232d6c training_utils.py "
                    "prepare_model_for_training: float32_mixed_precision")
