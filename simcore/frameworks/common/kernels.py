"""Kernels that torch runs, for times only: the backend of attention, and whether operators are compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.models.blocks import Attention, LatentAttention
from simcore.placement.job import Draft, Job
from simcore.placement.libraries import KernelLibraries

__all__ = ["FUSED", "NORM_AND_PRODUCT", "SDPA_BACKENDS", "runs_math", "torch_libraries"]

FUSED: Final = 0.315
"""Share of the bytes of an eager layer's pointwise kernels that a compiled one moves, for layers that are compiled and
recorded as eager: assumed, as torchtitan's compiled Llama beside transformers' and KempnerForge's eager one (0.30 to
0.33). Sums of gradients are left as they are, though a compiler joins those inside a block."""

SDPA_BACKENDS: Final = ("cudnn", "flash", "efficient", "math")
"""Values of the option `sdpa_backend`, torch's SDPBackend in small letters, in the order in which torch tries them."""
_KERNELS: Final = {"cudnn": "attention", "flash": "attention_flash2", "efficient": "attention_efficient",
                   "math": "attention_efficient"}
"""Kernel of each backend; layers with a mask have one also where the others run plain operators."""
_GROUPED: Final = ("hf", "hf4", "autoep")
"""Implementations that ask SDPA for grouped heads where they pass no mask (use_gqa_in_sdpa)."""
_CLIPPED: Final = ("hf", "hf4", "hub", "torchtitan")
"""Implementations whose trainers clip gradients unless told otherwise: transformers 5.23 (`training_args.py`,
max_grad_norm 1.0) and torchtitan (b5bcd76c `distributed/utils.py`, clip_grad_norm_; max_norm 1.0), both at infinity
too. Composer and KempnerForge clip where their files say so: not timed."""
NORM_AND_PRODUCT: Final = 3
"""Passes over gradients that are clipped: their norm reads them, a product reads and writes them."""
_WIDEST: Final = 256
_FILE: Final = "torch 2.13 ATen/native/transformers/cuda/sdp_utils.cpp"
_RULE: Final = (f"{_FILE}, check_prefer_cudnn_attention: on compute capability 9.0 and 10.0 with cuDNN 9.15.1 or "
                "later; else flash-attention 2; where that cannot, the memory-efficient kernel, then plain operators")


def torch_libraries(job: Draft, options: Mapping[str, Any]) -> KernelLibraries:
    """Returns the kernel libraries of a job in plain PyTorch: torch's own linears and operators.

    `options`: the framework options that the scenario sets, by name. The attention kernel is the scenario's, or the one
    that torch chooses; IllegalLayout for one that cannot run.
    """
    compiled = options.get("compile") not in (None, False, "loss")
    as_eager = options.get("compile") is True and job.graph.implementation != "torchtitan"
    return KernelLibraries(attention=_attention(job, options), eager=not compiled, fused=FUSED if as_eager else 1.0,
                           pipelined=job.mesh.tp if options.get("async_tp") else 0,
                           grad_passes=NORM_AND_PRODUCT * (job.graph.implementation in _CLIPPED))


def _attention(job: Draft, options: Mapping[str, Any]) -> str:
    if job.graph.implementation == "llmfoundry":  # models/mpt/configuration_mpt.py: attn_impl triton
        return "attention_flash2" if options.get("attn_impl") == "flash" else "attention_triton"
    if job.graph.implementation == "torchtitan" and options.get("attn") == "flex":
        job.refuse_idle(options, "sdpa_backend", "with attn: flex")
        return "attention_flash2"
    given = str(options.get("attn_implementation", ""))
    if given == "flash_attention_2" and job.compute_capability < (8, 0):
        raise job.illegal("framework_options.attn_implementation", "FlashAttention only supports Ampere GPUs or newer",
                          "flash-attn 2 csrc/flash_attn/flash_api.cpp")
    if given == "flash_attention_2" and job.compute == "fp32":
        raise job.illegal("framework_options.attn_implementation", "FlashAttention only support fp16 and bf16 data "
                          "type", "flash-attn 2 csrc/flash_attn/flash_api.cpp")
    if given == "flash_attention_2" and _has_wide_heads(job):
        raise job.illegal("framework_options.attn_implementation", "FlashAttention forward only supports head "
                          f"dimension at most {_WIDEST}", "flash-attn 2 csrc/flash_attn/flash_api.cpp")
    if given not in ("", "None", "sdpa"):
        job.refuse_idle(options, "sdpa_backend", f"with attn_implementation: {given}")
    if given == "eager":  # products, counted as such
        return "attention"
    if given.startswith(("fl", "xf", "kernels")):  # flash-attention 2, FlexAttention, xformers, or 3 from the hub
        return "attention" if given.startswith("kernels") else "attention_flash2"
    reasons = _reasons(job)
    backend = job.auto("framework_options.sdpa_backend", str(options.get("sdpa_backend") or "auto"),
                       _default(job, reasons), _RULE)
    if backend == "math" and job.graph.implementation not in _GROUPED:
        raise job.not_yet("framework_options.sdpa_backend", f"math in layers of {job.graph.implementation} (served: "
                          f"{', '.join(SDPA_BACKENDS[:-1])})")
    if reason := reasons[backend]:
        raise job.illegal("framework_options.sdpa_backend", *reason)
    return _KERNELS[backend]


def runs_math(job: Job, options: Mapping[str, Any]) -> bool:
    """True if torch's attention without a mask is plain operators, by its own choice or because the scenario asks.

    `options`: the framework options that the scenario sets, by name. See `operators/shared/math_attention.py`.
    """
    asked = str(options.get("sdpa_backend") or "auto")
    return (_default(job, _reasons(job)) if asked == "auto" else asked) == "math"


_Reasons = Mapping[str, tuple[str, str] | tuple[()]]
"""Why a backend does not take a job's attention, and the rule; () where it does."""


def _reasons(job: Job) -> _Reasons:
    wide = _of_16_bits_alone(job)
    return {"cudnn": wide or _not_by_cudnn(job), "flash": wide or _not_by_flash(job),
            "efficient": _not_by_efficient(job), "math": ()}


def _default(job: Job, reasons: _Reasons) -> str:
    """Backend that torch chooses."""
    prefers = job.compute_capability in ((9, 0), (10, 0))
    return next(name for name in SDPA_BACKENDS if not reasons[name] and (prefers or name != "cudnn"))


def _of_16_bits_alone(job: Job) -> tuple[str, str] | tuple[()]:
    """Why neither cuDNN's kernel nor flash takes this job's attention, and the rule."""
    if job.compute != "fp32":
        return ()
    return ("Expected query, key and value to all be of dtype: {Half, BFloat16}", f"{_FILE} check_tensor_dtype")


def _has_wide_heads(job: Job) -> bool:
    return any(isinstance(branch.block, Attention) and branch.block.head_dim > _WIDEST
               for kind in job.graph.kinds for branch in kind.branches)


def _not_by_cudnn(job: Job) -> tuple[str, str] | tuple[()]:
    if _has_wide_heads(job):
        return (f"cuDNN MHA only supports heads of at most {_WIDEST} elements", f"{_FILE} check_cudnn_tensor_shapes")
    if job.compute_capability >= (8, 0):
        return ()
    return ("cuDNN MHA only supports gpu architectures in the range [sm80, sm121]",
            f"{_FILE} check_cudnn_hardware_support")


def _not_by_efficient(job: Job) -> tuple[str, str] | tuple[()]:
    """Why the memory-efficient kernel does not take this job's attention without a mask, and the rule."""
    training = job.scenario.training
    if job.graph.implementation not in _GROUPED or training.lengths == "packed":
        return ()
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    grouped = any(isinstance(block, Attention) and block.num_kv_heads < block.num_heads and block.head_dim <= _WIDEST
                  and not 0 < block.window <= training.seq_len for block in blocks)
    return ("For dense input, both fused kernels require query, key and value to have the same num_heads",
            f"{_FILE} can_use_mem_efficient_attention, check_batch_size_and_num_heads_dense; transformers 5.23 "
            "integrations/sdpa_attention.py use_gqa_in_sdpa") if grouped else ()


def _not_by_flash(job: Job) -> tuple[str, str] | tuple[()]:
    """Why torch's flash kernel does not take this job's attention, and the rule."""
    if job.compute_capability < (8, 0):
        return ("Flash attention is only supported on compute capability 8.0 to 12.1",
                f"{_FILE} check_flash_attention_hardware_support")
    if _has_wide_heads(job):
        return (f"Flash attention requires q, k and v to have a head dimension of at most {_WIDEST}",
                f"{_FILE} check_head_dim_size_flash")
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    for block in blocks:
        if isinstance(block, LatentAttention) and block.nope + block.rope != block.value:
            return (f"Flash attention requires q, k and v to have the same last dimension: {block.nope + block.rope} "
                    f"and {block.value} here", f"{_FILE} check_head_dim_size_flash")
    training = job.scenario.training
    windows = any(isinstance(block, Attention) and 0 < block.window <= training.seq_len for block in blocks)
    if job.graph.implementation == "hf" and (windows or training.lengths == "packed"):
        return ("Flash attention does not support a mask, which packed sequences and windows need in these layers",
                f"{_FILE} check_for_attn_mask")
    return ()
