"""Unsloth's `FastLanguageModel` around transformers' layers: its requirements and its settings.

unsloth 015bdef0 (2026.8.19) `models/loader.py`, FastLanguageModel.from_pretrained: own layers for llama, mistral, qwen2
and qwen3; every other family goes to FastModel, which compiles transformers' own. `models/llama.py`, patch_peft_model:
its functions run linears whose adapters have no dropout, module by module, see `operators/hf/unsloth.py`. unsloth-zoo
ce232d6c `training_utils.py`, prepare_model_for_training: adapters are fp32, everything else stays as it is loaded.
`use_gradient_checkpointing: unsloth` is recompute: full with offload.activations: host.

[Note: Nemotron-H in Unsloth]
FastModel loads it (`models/loader.py`; `models/vision.py`: SKIP_QUANTIZATION_MODULES and out_proj stay in 16 bits).
With trust_remote_code nothing is compiled (`models/_utils.py`, unsloth_compile_transformers), and each expert of that
code is two linears, packed in 4 bits. The experts of transformers 5 are parameters of 3-D named up_proj and down_proj,
which unsloth-zoo `temporary_patches/moe_utils_bnb4bit.py` does not pack: it looks for gate_up_proj.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.models.blocks import Attention
from simcore.operators.hf.options import UnslothRelease
from simcore.placement.afterwards import Copies, Merge
from simcore.placement.job import Draft, Job

__all__ = ["FAST_MERGE", "FAST_OPTION", "FAST_RELEASES", "XFORMERS", "adapter_dtype", "fast_layers"]

FAST_OPTION: Final = "FastLanguageModel"
FAST_RELEASES: Final[tuple[Any, ...]] = (True, False, "2024.12", 2024.12)
"""Releases; True: the newest that is described."""
XFORMERS: Final = "xformers"
_ATTENTION: Final = (None, "sdpa", "flash_attention_2", XFORMERS)
FAST_MERGE: Final = Merge(
    "unsloth-zoo ce232d6c saving_utils.py _merge_lora, _write_tensor_direct_torch: save_pretrained_merged, on mapped "
    "files of the base in 16 bits", device=(Copies(fp32=1, low_rank_fp32=1), Copies(fp32=1, compute=1)),
    host=(Copies(fp32=1, compute=1), Copies(compute=2)))
"""`save_pretrained_merged`: the base comes from its files, whose pages are the system's cache."""
_LINEARS: Final = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
_SERVED: Final = {"newest": ("llama", "mistral", "qwen2", "qwen3"), "2024.12": ("llama",)}
_AT: Final = f"framework_options.{FAST_OPTION}"
_KERNEL: Final = "framework_options.attn_implementation"


def fast_layers(job: Draft, options: dict[str, Any]) -> UnslothRelease:
    """Returns the release of Unsloth whose layers the options ask for: "newest" or "2024.12"; "" for none.

    `options`: the framework options that the scenario sets, by name. NotYet for a job whose layers Unsloth does not
    replace, or that is not modelled; IllegalLayout for an attention that is not Unsloth's, or Unsloth's alone.
    """
    if not options.get(FAST_OPTION):
        if options.get("attn_implementation") == XFORMERS:
            raise job.illegal(_KERNEL, "transformers has no xformers attention, Unsloth has",
                              "transformers 5.23 modeling_utils.py ALL_ATTENTION_FUNCTIONS")
        return ""
    release: UnslothRelease = "newest" if options[FAST_OPTION] is True else "2024.12"
    _check_model(job, release)
    _check_training(job, options, release)
    _choose_attention(job, options, release)
    return release


def _check_model(job: Job, release: UnslothRelease) -> None:
    """Raises NotYet for another family, or adapters of other linears, than Unsloth's layers are known for."""
    family, served = job.graph.architecture.family, _SERVED[release]
    if job.scenario.training.method == "full":
        raise job.not_yet(_AT, "Unsloth's layers without adapters (full_finetuning)")
    if family == "nemotron_h":
        raise job.not_yet(_AT, "Unsloth's nemotron_h, which has none of its functions: with trust_remote_code the "
                          "layers of its repository, else transformers' with experts in 16 bits; ask for either by "
                          f"implementation, without {FAST_OPTION}")
    if family not in served:
        raise job.not_yet(_AT, f"Unsloth's layers of {family} (served: {', '.join(served)})")
    adapted = {spec.path.rpartition(".")[2] or "lm_head" for specs in job.graph.tensors for spec in specs
               if spec.module == "linear" and any(other.path == f"{spec.path}.lora_a".lstrip(".") for other in specs)}
    if not adapted or adapted - _LINEARS:
        raise job.not_yet(_AT, f"Unsloth's layers with adapters of {', '.join(sorted(adapted)) or 'none'} (served: of "
                          f"any of {', '.join(sorted(_LINEARS))})")
    if release == "2024.12" and adapted != _LINEARS:
        raise job.not_yet(_AT, f"{release}'s layers without an adapter of each linear (missing: "
                          f"{', '.join(sorted(_LINEARS - adapted))})")


def _check_training(job: Job, options: dict[str, Any], release: UnslothRelease) -> None:
    training = job.scenario.training
    if options.get("autocast") or options.get("prepare_model_for_kbit_training"):
        raise job.not_yet(_AT, "autocast around Unsloth's layers over fp32 parameters")
    if release == "2024.12" and (training.lora.dropout or training.lora.use_dora):
        raise job.not_yet(_AT, f"{release}'s layers around PEFT's own modules, as dropout of adapters and DoRA leave "
                          "them (models/llama.py patch_peft_model; served: the newest release)")
    if training.quantization.format == "int8":
        raise job.not_yet(_AT, "Unsloth's layers over LLM.int8() (load_in_8bit)")
    if training.lengths == "packed":
        raise job.not_yet(_AT, "packed sequences in Unsloth's layers")


def _choose_attention(job: Draft, options: dict[str, Any], release: UnslothRelease) -> None:
    """Notes the kernel of attention, which is what is installed: flash-attn, else xformers, else torch's SDPA."""
    given = options.get("attn_implementation")
    if given not in _ATTENTION:
        raise job.illegal(_KERNEL, f"{given}: Unsloth's layers run flash-attn if it is installed, else xformers, else "
                          "SDPA", "unsloth 015bdef0 utils/attention_dispatch.py select_attention_backend")
    if release == "2024.12" and given != "flash_attention_2":
        raise job.not_yet(_AT, f"{release}'s layers with another attention than flash_attention_2")
    if given == XFORMERS and job.compute_capability < (8, 0):
        raise job.not_yet(_KERNEL, "xformers' CUTLASS kernel, which it runs before Ampere (served: sdpa)")
    windows = [branch.block.window for kind in job.graph.kinds for branch in kind.branches
               if isinstance(branch.block, Attention)]
    if given != "flash_attention_2" and any(0 < window <= job.scenario.training.seq_len for window in windows):
        raise job.not_yet(_KERNEL, "a window within the sequence in Unsloth's layers without flash_attention_2")
    if given is None:
        job.auto(_KERNEL, "auto", "sdpa", "unsloth 015bdef0 utils/attention_dispatch.py select_attention_backend: "
                 "flash-attn if installed (Ampere or newer), else xformers, else SDPA; pip install unsloth brings "
                 "neither (pyproject.toml)")


def adapter_dtype(job: Draft, options: dict[str, Any], stored: str) -> str:
    """Returns the dtype of LoRA's adapters: as the scenario asks, else fp32 with Unsloth's layers, else `stored`.

    `options`: the framework options that the scenario sets, by name. `stored`: dtype of the model's weights at rest.
    """
    requested = job.scenario.training.lora.dtype
    if not options.get(FAST_OPTION):
        return stored if requested == "auto" else requested
    return job.auto("training.lora.dtype", requested, "fp32", "unsloth-zoo ce232d6c training_utils.py "
                    "prepare_model_for_training: float32_mixed_precision")
