"""Unsloth's `FastLanguageModel` around transformers' layers: its requirements and its settings.

unsloth 015bdef0 (2026.8.19) `models/loader.py`, FastLanguageModel.from_pretrained: own layers for llama, mistral, qwen2
and qwen3; every other family goes to FastModel, which compiles transformers' own. `models/llama.py`, patch_peft_model:
its functions run linears whose adapters have no dropout, module by module, see `operators/hf/unsloth.py`. unsloth-zoo
ce232d6c `training_utils.py`, prepare_model_for_training: adapters are fp32, everything else stays as it is loaded.
`use_gradient_checkpointing: unsloth` is recompute: full with offload.activations: host ([Note: Unsloth's checkpoints]
in `operators/hf/unsloth.py`).

[Note: Nemotron-H in Unsloth]
`models/loader.py` sends it to FastModel. With trust_remote_code its repository's own code runs, and nothing of it is
compiled or replaced (`models/_utils.py`, unsloth_compile_transformers: "We can't trace models"): no function of LoRA,
its own router, loop over experts, norms and loss (a CrossEntropyLoss of its own, which `patch_loss_functions` does not
reach; `temporary_patches/moe_grouped_modulelist.py` knows three other blocks). What Unsloth does around it:

 * `models/vision.py`, FastBaseModel.from_pretrained: NF4 with double quantisation of every linear but
   SKIP_QUANTIZATION_MODULES and out_proj: each expert's two linears, Mamba's in_proj, attention, shared experts;
 * get_peft_model: PEFT's adapters, made fp32; everything else stays in bf16. The Trainer's bf16 is switched on for them
   (`models/rl.py`: UNSLOTH_MIXED_PRECISION float32), so forward runs under autocast, also over router and experts;
 * prepare_model_for_training: the embedding's output takes a gradient (enable_input_require_grads). On several GPUs
   checkpoints are torch's own without reentry, and nothing is moved to the host (`post_patch_model`).

In fp16 the model would be loaded in fp32 and its projections cast (UNSLOTH_FORCE_CUSTOM_DTYPE). Without
trust_remote_code FastModel compiles transformers' modules (unsloth-zoo `compiler.py`), and its experts are parameters
of 3-D named up_proj and down_proj, which `temporary_patches/moe_utils_bnb4bit.py` does not pack: it looks for
gate_up_proj.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common.autocast import Mixed, mixed_of
from simcore.models.blocks import Attention
from simcore.operators.hf.options import HfOptions, UnslothRelease
from simcore.placement.afterwards import Copies, Merge
from simcore.placement.job import Draft, Job

__all__ = ["FAST_MERGE", "FAST_OPTION", "FAST_RELEASES", "XFORMERS", "adapter_dtype", "asks_for_gradient",
           "checkpointed", "fast_layers", "fast_mixed", "kept_inputs"]

FAST_OPTION: Final = "FastLanguageModel"
FAST_RELEASES: Final[tuple[Any, ...]] = (True, False, "2024.12", 2024.12)
"""Releases; True: the newest that is described."""
XFORMERS: Final = "xformers"
_ATTENTION: Final = (None, "sdpa", "flash_attention_2", XFORMERS)
FAST_MERGE: Final = Merge(
    "unsloth-zoo ce232d6c saving_utils.py _merge_lora, _write_tensor_direct_torch: save_pretrained_merged, on mapped "
    "files of the base in 16 bits", device=(Copies(fp32=1, low_rank_fp32=1), Copies(fp32=1, compute=1)),
    host=(Copies(fp32=1, compute=1), Copies(compute=2)), rewrites=True)
"""`save_pretrained_merged`: the base comes from its files, whose pages are the system's cache."""
_REPOSITORY: Final = "hub"
_LINEARS: Final = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
_SERVED: Final = {"newest": ("llama", "mistral", "qwen2", "qwen3"), "2024.12": ("llama",)}
_CHECKPOINT: Final = "unsloth-zoo ce232d6c gradient_checkpointing.py UnslothCheckpointFunction"
_SMALLEST: Final = 2**20
"""Elements of 16 bits in 2 MiB."""
_AT: Final = f"framework_options.{FAST_OPTION}"
_KERNEL: Final = "framework_options.attn_implementation"


def fast_layers(job: Draft, options: dict[str, Any]) -> UnslothRelease:
    """Returns the release of Unsloth whose functions the layers run: "newest" or "2024.12"; "" for none.

    None run in Nemotron-H, see [Note: Nemotron-H in Unsloth].

    `options`: the framework options that the scenario sets, by name. NotYet for a job that is not modelled;
    IllegalLayout for an attention that is not Unsloth's, or Unsloth's alone.
    """
    if not options.get(FAST_OPTION):
        if options.get("attn_implementation") == XFORMERS:
            raise job.illegal(_KERNEL, "transformers has no xformers attention, Unsloth has",
                              "transformers 5.23 modeling_utils.py ALL_ATTENTION_FUNCTIONS")
        return ""
    release: UnslothRelease = "newest" if options[FAST_OPTION] is True else "2024.12"
    _check_model(job, release)
    _check_training(job, options, release)
    if job.graph.implementation == _REPOSITORY:
        _check_repository(job)
        return ""
    _choose_attention(job, options, release)
    return release


def _check_model(job: Job, release: UnslothRelease) -> None:
    """Raises NotYet for another family, or adapters of other linears, than Unsloth's layers are known for."""
    family, served = job.graph.architecture.family, _SERVED[release]
    if job.scenario.training.method == "full":
        raise job.not_yet(_AT, "Unsloth's layers without adapters (full_finetuning)")
    if family == "nemotron_h" and release == "newest":
        if job.graph.implementation == _REPOSITORY:
            return
        raise job.not_yet(_AT, "Unsloth's nemotron_h without trust_remote_code, whose modules FastModel compiles "
                          "(unsloth_zoo compiler.py), with experts in 16 bits (served: implementation: hub)")
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
    asked = options.get("autocast") or options.get("prepare_model_for_kbit_training")
    if asked and job.graph.implementation != _REPOSITORY:  # whose forward is under autocast without being asked
        raise job.not_yet(_AT, "autocast around Unsloth's layers over fp32 parameters")
    if release == "2024.12" and (training.lora.dropout or training.lora.use_dora):
        raise job.not_yet(_AT, f"{release}'s layers around PEFT's own modules, as dropout of adapters and DoRA leave "
                          "them (models/llama.py patch_peft_model; served: the newest release)")
    if training.quantization.format == "int8":
        raise job.not_yet(_AT, "Unsloth's layers over LLM.int8() (load_in_8bit)")
    if training.lengths == "packed":
        raise job.not_yet(_AT, "packed sequences in Unsloth's layers")


def _check_repository(job: Job) -> None:
    """Raises NotYet or IllegalLayout for settings that Unsloth does not run a repository's code with."""
    if job.compute != "bf16":
        raise job.not_yet("training.precision.compute", f"{job.compute} of Unsloth's nemotron_h, which is loaded in "
                          "fp32 and cast by parts (models/loader.py UNSLOTH_FORCE_CUSTOM_DTYPE; served: bf16)")
    if job.mesh.dp_replicate > 1 and job.scenario.training.offload.part("activations")[1]:
        raise job.illegal("training.offload.activations", "on several GPUs Unsloth takes its checkpointing back: "
                          "inputs of layers stay on the device", "unsloth 015bdef0 models/vision.py post_patch_model")


def fast_mixed(job: Draft, options: dict[str, Any]) -> Mixed:
    """Returns dtype of the parameters and autocast of a model that Unsloth or a plain Trainer trains.

    `options`: the framework options that the scenario sets, by name. A repository's code runs under autocast over
    16-bit weights in Unsloth, NotYet for others; what else is in `mixed_of`.
    """
    if not options.get(FAST_OPTION) or job.graph.implementation != _REPOSITORY:
        return mixed_of(job, options)
    stored = job.auto("training.precision.params", job.scenario.training.precision.params, job.compute,
                      "unsloth 015bdef0 models/vision.py: torch_dtype")
    if stored != job.compute:
        raise job.not_yet("training.precision.params", f"{stored} parameters of a repository's code in Unsloth")
    job.note("framework_options.autocast", "true", "unsloth 015bdef0 models/rl.py: bf16 for adapters in fp32")
    return Mixed(stored, autocast=True)


def asks_for_gradient(job: Job, options: dict[str, Any]) -> bool:
    """True if the embedding's output takes a gradient because Unsloth asks for it, with or without checkpoints.

    `options`: the framework options that the scenario sets, by name. unsloth-zoo ce232d6c `training_utils.py`,
    prepare_model_for_training: use_reentrant; unsloth 015bdef0 `models/vision.py`: not on several GPUs.
    """
    alone = job.mesh.dp_replicate == 1 or job.graph.implementation != _REPOSITORY
    return bool(options.get(FAST_OPTION)) and alone


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


def checkpointed(job: Draft, options: dict[str, Any], layers: HfOptions) -> HfOptions:
    """Returns options of `layers` whose inputs go to the host by Unsloth's newest checkpointing.

    `options`: the framework options that the scenario sets, by name. Inputs of 2 MiB or less stay. Other jobs' are
    returned as they are.
    """
    if not _buffers_inputs(options) or not layers.inputs_on_host:
        return layers
    training = job.scenario.training
    elements = training.micro_batch_size * training.seq_len * job.graph.architecture.hidden
    if elements <= _SMALLEST:
        job.note("training.offload.activations", f"no effect: inputs of {elements} elements stay on the device",
                 f"{_CHECKPOINT}: MINIMUM_SIZE")
    return replace(layers, inputs_on_host=elements > _SMALLEST, has_input_buffers=True)


def kept_inputs(job: Job, options: dict[str, Any]) -> tuple[int, ...]:
    """Returns the number of the last layer, whose input Unsloth's newest checkpointing leaves on the device; or none.

    `options`: the framework options that the scenario sets, by name. Source: LAST_GC_INDEX, which the first step sets.
    """
    layers = [number for number, layer in enumerate(job.graph.layers) if job.graph.kinds[layer.kind].block is None]
    return (layers[-1],) if _buffers_inputs(options) and job.scenario.training.offload.part("activations")[1] else ()


def _buffers_inputs(options: dict[str, Any]) -> bool:
    return options.get(FAST_OPTION) is True


def adapter_dtype(job: Draft, options: dict[str, Any], stored: str) -> str:
    """Returns the dtype of LoRA's adapters: as the scenario asks, else fp32 with Unsloth's layers, else `stored`.

    `options`: the framework options that the scenario sets, by name. `stored`: dtype of the model's weights at rest.
    """
    requested = job.scenario.training.lora.dtype
    if not options.get(FAST_OPTION):
        return stored if requested == "auto" else requested
    return job.auto("training.lora.dtype", requested, "fp32", "unsloth-zoo ce232d6c training_utils.py "
                    "prepare_model_for_training: float32_mixed_precision")
