"""Attention under NeMo Automodel: `attn_implementation` where a model reads its configuration, else BackendConfig.

[Note: attn_implementation]
0.7.0 `_transformers/auto_model.py` hands it to transformers' layers and to the configuration, which Automodel's own
Llama, Qwen2 and Qwen3 read (`models/llama/model.py:237`, `models/qwen2/model.py:221`, `models/qwen3/model.py:122`);
eager is transformers' own function in all of them. DeepSeek-V3, Nemotron-H and Qwen3-MoE take `BackendConfig.attn`
alone, whose functions are TE's, SDPA, flex and others (`components/attention/utils.py`), never eager. With cp
Automodel's own layers keep what is asked, although ranks exchange keys in SDPA alone (`components/distributed/
context_parallel/utils.py`). With pp every stage makes the mask of its layers once and keeps it, None for SDPA and flash
attention (`components/distributed/pipelining/hf_utils.py`, _build_or_reuse_pp_causal_mask).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, cast

from simcore.frameworks.common.kernels import torch_libraries
from simcore.models.blocks import LatentAttention, Mixer
from simcore.operators.automodel.dense import DENSE
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.sparse import has_streams
from simcore.placement.job import Draft

__all__ = ["ATTENTIONS", "ATTENTION_OPTION", "BACKENDS", "CHOOSING", "attention_library", "attention_of",
           "packed_assumptions", "rings_by_te", "rope_of", "runs_flex", "te_calls", "with_backend"]

Asked = Literal["sdpa", "eager", "flash_attention_2"]
ATTENTION_OPTION: Final = "attn_implementation"
ATTENTIONS: Final = (None, "eager", "sdpa", "flash_attention_2")
CHOOSING: Final = ("tilelang",)
"""Values of attn whose kernels read the keys alone that an indexer has chosen."""
BACKENDS: Final = ("te", "sdpa", "flex", "torch", *CHOOSING)
_UNSUPPORTED: Final = "0.7.0 components/attention/utils.py initialize_attn_module_and_func"
_KERNEL_SIZES: Final = (512, 64)
_AT: Final = f"framework_options.{ATTENTION_OPTION}"


def attention_of(job: Draft, options: dict[str, object]) -> Asked:
    """Returns the attention that decides what layers keep: "sdpa", unless the scenario asks for another.

    Raises InputError where the option changes nothing, NotYet for what is not modelled.
    """
    given, family = options.get(ATTENTION_OPTION), job.graph.architecture.decoder
    own = job.graph.implementation == "automodel"
    if own and family not in DENSE:
        job.refuse_idle(options, ATTENTION_OPTION, f"in Automodel's layers of {family}: their attention is the option "
                        "attn (0.7.0 components/attention/utils.py)")
    if not own and job.scenario.training.lengths == "packed":
        job.note("attention of packed sequences", "flash_attention_2", "0.7.0 _transformers/kernel_patches.py "
                 "_apply_preload_overrides: whatever is asked, in transformers' layers")
        return "flash_attention_2"
    if given is None:
        return "sdpa"
    if own and job.scenario.training.lengths == "packed":
        if options.get("attn", "te") != "te":
            raise job.not_yet(_AT, f"{given} with packed sequences and attn {options['attn']} under automodel")
        job.note("attention of packed sequences", "TransformerEngine's", f"0.7.0 components/models/{family}/model.py: "
                 "whatever attn_implementation is")
        return "sdpa"
    if job.mesh.cp > 1 and given != "sdpa":
        raise job.not_yet(_AT, f"{given} with cp {job.mesh.cp} in Automodel's own layers, each rank of which attends "
                          "to its own part alone (0.7.0 components/distributed/context_parallel/utils.py exchanges "
                          "keys in SDPA)")
    if job.mesh.pp > 1 and given == "eager":
        raise job.not_yet(_AT, f"eager with pp {job.mesh.pp} under automodel, whose stages keep a mask each (0.7.0 "
                          "components/distributed/pipelining/hf_utils.py _build_or_reuse_pp_causal_mask)")
    if own:
        job.refuse_idle(options, "attn", f"with {ATTENTION_OPTION}: {given}")
    return cast(Asked, given)


def with_backend(job: Draft, options: dict[str, object], layers: AutomodelOptions) -> AutomodelOptions:
    """Returns options of layers as BackendConfig.attn says."""
    given = options.get("attn")
    return layers if given is None else replace(layers, sdpa=given == "sdpa", sparse=given in CHOOSING)


def rope_of(job: Draft, options: dict[str, object]) -> Literal["torch", "quack"]:
    """Returns the kernel that rotates queries and keys of Automodel's Llama and Qwen2.

    Raises InputError where the option changes nothing, NotYet for what is not modelled of Quack's.
    """
    if job.graph.implementation != "automodel" or job.graph.architecture.family not in ("llama", "qwen2"):
        job.refuse_idle(options, "backend.rope", "but in Automodel's own Llama and Qwen2")
    if options.get("backend.rope") != "quack":
        return "torch"
    training = job.scenario.training
    if training.micro_batch_size > 1 or training.lengths == "packed" or options.get(ATTENTION_OPTION) == "eager":
        raise job.not_yet("framework_options.backend.rope", "rotation by quack of several sequences, of packs, or with "
                          "eager attention")
    return "quack"


def attention_library(job: Draft, options: dict[str, object]) -> str:
    """Returns the class of attention's kernels, which changes time alone; transformers' layers have torch's."""
    if job.graph.implementation != "automodel":
        job.refuse_idle(options, "attn", "in transformers' layers")
        return torch_libraries(job, options | {ATTENTION_OPTION: attention_of(job, options)}).attention
    if options.get(ATTENTION_OPTION) is not None:
        return torch_libraries(job, options).attention
    _check_indexer(job, options)
    if options.get("attn") == "torch" and not has_streams(job.graph.architecture.decoder):
        raise job.illegal("framework_options.attn", "Unsupported attention implementation: torch", _UNSUPPORTED)
    backend = job.auto("framework_options.attn", str(options.get("attn", "auto")), *_backend_by_default(job))
    if backend != "sdpa":
        job.refuse_idle(options, "sdpa_backend", f"with attention by {backend}")
    if backend == "flex":
        return "attention_flash2"
    return "attention" if backend in ("te", *CHOOSING) else torch_libraries(job, options).attention


def _check_indexer(job: Draft, options: dict[str, object]) -> None:
    """Refuses what is not modelled of layers whose indexer chooses keys (DeepSeek-V3.2, GLM-5).

    IllegalLayout for what their code refuses, NotYet for the rest.
    """
    found = [block for block in _mixers(job) if isinstance(block, LatentAttention) and block.indexer]
    at, source = "0.7.0 models/{deepseek_v32,glm_moe_dsa}/layers.py", options.get("attn", "te")
    if source in CHOOSING and not has_streams(job.graph.architecture.decoder):
        _check_kernels(job, found, str(source))
        return
    if not found:
        return
    if job.mesh.cp > 1 and source == "sdpa":
        served = f" (served: {_served(job)})" if _reads_selected(job) else ""
        raise job.illegal("mesh.cp", "GLM DSA context parallelism is implemented only for backend.attn in "
                          f"{{'tilelang', 'cudnn'}}{served}", f"{at}; DeepSeek-V3.2 supports none")
    if source != "sdpa":
        raise job.not_yet("framework_options.attn", f"attention by {source} behind an indexer of keys (served: "
                          f"{_served(job)}): which of TransformerEngine's ways takes the mask of selected keys is not "
                          "known")
    if job.scenario.training.lengths == "packed":
        raise job.not_yet("training.lengths", "packed sequences behind an indexer of keys, by sdpa")


def _reads_selected(job: Draft) -> bool:
    """True for GLM-5, whose layers alone have kernels that read the selected keys alone."""
    return job.graph.architecture.family == "glm_moe_dsa"


def _served(job: Draft) -> str:
    """Attention behind an indexer that runs with the job's cp, in words."""
    kernel = f"{CHOOSING[0]} with lengths: packed"
    if job.mesh.cp > 1:
        return kernel if _reads_selected(job) else "cp 1"
    return f"sdpa, or {kernel}" if _reads_selected(job) else "sdpa"


def _check_kernels(job: Draft, found: list[LatentAttention], source: str) -> None:
    """Refuses kernels that read chosen keys alone in other layers than GLM-5's, and of whole rows."""
    at = "0.7.0 models/glm_moe_dsa/layers.py GlmMoeDsaIndexer.forward"
    if not _reads_selected(job):
        raise job.illegal("framework_options.attn", f"Unsupported attention implementation: {source}", _UNSUPPORTED)
    if job.scenario.training.lengths != "packed":
        raise job.illegal("training.lengths", f"{source} DSA indexer requires THD/packed sequences (qkv_format='thd'): "
                          f"use backend.attn in {{te, sdpa}} (served: {_served(job)})", at)
    if any((block.kv_rank, block.rope) != _KERNEL_SIZES for block in found):
        raise job.illegal("model", f"kv_lora_rank and qk_rope_head_dim must be {_KERNEL_SIZES} with attn {source}",
                          "0.7.0 models/glm_moe_dsa/kernels/tilelang_sparse_mla_fwd.py sparse_mla_fwd_interface")


def _mixers(job: Draft) -> list[Mixer]:
    return [branch.block for kind in job.graph.kinds for branch in kind.branches]


def _backend_by_default(job: Draft) -> tuple[str, str]:
    if has_streams(job.graph.architecture.decoder):
        return "torch", "0.7.0 models/deepseek_v4/layers.py _dsv4_kernel_backend: whatever is asked but tilelang"
    if job.graph.architecture.family == "gpt_oss":
        return "flex", "0.7.0 models/gpt_oss/model.py: GptOssForCausalLM takes BackendConfig(attn=\"flex\")"
    return "te", "0.7.0 models/common/utils.py: BackendConfig.attn is te where TE is installed"


def rings_by_te(job: Draft, options: dict[str, object]) -> bool:
    """True if keys and values go round cp ranks by TransformerEngine, whose messages run beside attention.

    False without cp, and for torch's ring, which takes SDPA's place (0.7.0 `components/distributed/context_parallel/
    utils.py`, create_context_parallel_ctx).
    """
    if options.get("attn") in CHOOSING:  # keys are gathered before attention runs
        return False
    by_sdpa = job.graph.architecture.decoder in DENSE or options.get("attn") == "sdpa"
    return job.mesh.cp > 1 and (job.scenario.training.lengths == "packed" or not by_sdpa)


def runs_flex(job: Draft, options: dict[str, object]) -> bool:
    """True for attention by torch's flex_attention, which is GPT-OSS's alone.

    Raises IllegalLayout for a backend that GPT-OSS refuses, NotYet for flex attention of other models and of packs.
    """
    given, oss = options.get("attn"), job.graph.architecture.family == "gpt_oss"
    if job.graph.implementation != "automodel" or not (oss or given == "flex"):
        return False
    if not oss:
        raise job.not_yet("framework_options.attn", "flex attention of other models than GPT-OSS under automodel")
    if given == "sdpa":
        raise job.illegal("framework_options.attn", "Only Flex and TE Attention are supported for GPT-OSS",
                          "0.7.0 models/gpt_oss/layers.py GptOssAttention")
    if given != "te" and job.scenario.training.lengths == "packed":
        raise job.not_yet("training.lengths", "packed sequences with flex attention under automodel")
    return given != "te"


_READ: Final = ("framework_options.attn", "kernels that read chosen keys alone: sizes are those of what their wrappers "
                "allocate, which were read, not run; their time is that of TransformerEngine's attention", "assumed",
                "0.7.0 components/models/glm_moe_dsa/{optimized_kernels.py,kernels}")


def packed_assumptions(job: Draft) -> list[tuple[str, str, str, str]]:
    """Returns what the report says about packed sequences in Automodel's own layers, as (key, value, kind, source)."""
    if job.graph.implementation != "automodel" or job.scenario.training.lengths != "packed":
        return []
    if job.scenario.framework_options.get("attn") in CHOOSING:
        return [_READ]
    thd = ("training.lengths", "attention by TE, in its layout thd", "assumed", "0.7.0 components/attention/utils.py: "
           "backend.attn te; SDPA would need a mask for each pair of positions")
    ring = ("mesh.cp", "keys and values of packs go round the ring whole, as those of whole rows do", "assumed",
            "TransformerEngine 2.15 dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P, read, not run")
    return [thd, ring] if job.mesh.cp > 1 else [thd]


def te_calls(job: Draft, options: dict[str, object]) -> tuple[tuple[str, str], ...]:
    """Returns the kernels that TransformerEngine's modules launch, as (kernel, module).

    0.7.0 models/common/utils.py: BackendConfig.linear is te where TE is installed; llama and qwen take torch's. With
    adapters all linear layers are counted as torch's, as their memory is.
    """
    if job.graph.implementation != "automodel":
        return ()
    linears = [("gemm", part) for part in ("attn", "mlp", "shared_experts")] * (job.scenario.training.method == "full")
    by_te = options.get("attn", _backend_by_default(job)[0]) == "te" and options.get(ATTENTION_OPTION) is None
    return (*linears, *([("attention", "attn")] if by_te else []))
