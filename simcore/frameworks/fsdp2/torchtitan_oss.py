"""GPT-OSS of torchtitan 0.2.2 on FSDP2: what it refuses, and options that change nothing there.

Sources: `models/gpt_oss/infra/parallelize.py`, `models/gpt_oss/model/args.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.placement.job import Draft, Job

__all__ = ["check_oss", "note_oss"]

_PLAN: Final = "torchtitan 0.2.2 models/gpt_oss/infra/parallelize.py"


def check_oss(job: Job, options: Mapping[str, Any]) -> None:
    """Raises IllegalLayout for a job of GPT-OSS that torchtitan refuses, InputError for an option without effect."""
    if job.mesh.cp > 1:
        raise job.illegal("mesh.cp", "CP support for gpt-oss model is still in progress.",
                          "torchtitan 0.2.2 models/gpt_oss/model/args.py:87 update_from_config")
    if job.mesh.pp > 1:
        raise job.illegal("mesh.pp", "Pipeline Parallel is enabled but gpt_oss does not support pipelining",
                          "torchtitan 0.2.2 train.py:220; models/gpt_oss/__init__.py: pipelining_fn=None")
    if options.get("attn") == "sdpa":
        raise job.illegal("framework_options.attn", "gpt-oss only support FlexAttention",
                          "torchtitan 0.2.2 models/gpt_oss/model/args.py:71 attn_type")
    if options.get("async_tp") and options.get("compile") not in (True, "model"):
        raise job.illegal("framework_options.async_tp", "Async TP requires torch.compile", f"{_PLAN}:91")
    job.refuse_idle(options, "async_tp", "in GPT-OSS, whose plan is called with enable_async_tp=False")
    job.refuse_idle(options, "sdpa_backend", "in GPT-OSS, whose attention is flex_attention")
    job.refuse_idle(options, "repeat_kv", "in GPT-OSS, which never repeats keys and values")


def note_oss(job: Draft, options: Mapping[str, Any]) -> None:
    """Notes the attention of GPT-OSS, what is assumed of it, and that none of its blocks is compiled."""
    job.auto("framework_options.attn", options.get("attn") or "auto", "flex", "torchtitan 0.2.2 models/gpt_oss/model/"
             "args.py: no other attention")
    job.note("attention by flex_attention", "buffers of Inductor's lowering, causal masks", "an assumption: torch 2.13 "
             "_inductor/kernel/flex/flex_attention.py was read, not run on a GPU")
    job.note("rows of experts", "as many for each, filled up to a multiple of 8", "an assumption: torchtitan 0.2.2 "
             "models/gpt_oss/model/moe.py repeats a bias for each row of its expert")
    job.note("parameters of layers", "bf16, whatever training.precision.params says", "torchtitan 0.2.2 "
             "models/gpt_oss/model/model.py: each TransformerBlock is made in torch.bfloat16")
    if options.get("compile") in (True, "model"):
        job.note("compiled blocks", "none in GPT-OSS", f"{_PLAN} parallelize_gptoss never compiles the model")
