"""Layers that torch.compile runs on one by one under NeMo Automodel 0.7.0: `distributed.enable_compile`.

`components/distributed/model_parallelizer.py` compile_parallelized_model, `distributed/parallelizer.py`
_apply_per_layer_compile: each decoder layer by itself, behind sharding, with hooks of FSDP2 outside of its graph. The
block `compile` of a recipe is for other strategies than FSDP2 (`_transformers/infrastructure.py:714`). What compiled
layers keep was measured for Automodel's own dense layers and some of transformers'; all else is refused by name.
`operators/automodel/compiled`.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.frameworks.automodel.attention import ATTENTION_OPTION
from simcore.frameworks.automodel.norms import NORM_NAME
from simcore.frameworks.automodel.tensor_parallel import turns_adapters_from
from simcore.frameworks.common.liger import LIGER_OPTION
from simcore.models.blocks import Attention
from simcore.operators.automodel.dense import DENSE
from simcore.placement.job import Job

__all__ = ["COMPILE_OPTIONS", "check_compiled", "compile_assumptions", "runs_compiled"]

_NAME: Final = "enable_compile"
_AT: Final = f"framework_options.{_NAME}"
_SERVED: Final = {"automodel": DENSE, "hf": ("llama", "mistral", "qwen2", "qwen3")}
_ROWS: Final = ("o_proj", "down_proj")
COMPILE_OPTIONS: Final[dict[str, Any]] = {_NAME: (True, False)}


def runs_compiled(job: Job) -> bool:
    """True if decoder layers are compiled."""
    return job.scenario.framework_options.get(_NAME) is True


def check_compiled(job: Job) -> None:
    """Raises NotYet for compiled layers of which it was not measured what they keep."""
    if not runs_compiled(job):
        return
    if reason := _not_measured(job):
        raise job.not_yet(_AT, f"layers by torch.compile {reason}")


def _not_measured(job: Job) -> str:
    """Part of the job that was not measured compiled, in words; "" if there is none."""
    training, mesh, options = job.scenario.training, job.mesh, job.scenario.framework_options
    family, lora = job.graph.architecture.family, job.scenario.training.lora
    window, alone = _window(job), mesh.dp_shard * mesh.dp_replicate * mesh.cp * mesh.tp == 1
    return next((what for said, what in (
        (family not in _SERVED.get(job.graph.implementation, ()),
         f"of {family} by the layers of {job.graph.implementation} (served: Automodel's own of {', '.join(DENSE)}, and "
         f"transformers' of {', '.join(_SERVED['hf'])})"),
        (job.graph.implementation == "hf" and mesh.tp > 1, "of transformers over tp"),
        (window > 0, f"whose attention sees a window (sliding_window {window}), told by a mask where seq_len, "
                     f"{training.seq_len}, reaches it"),
        (options.get("sdpa_backend") == "math", "whose attention has no kernel (sdpa_backend: math)"),
        (job.graph.implementation == "hf" and options.get(LIGER_OPTION) is not False,
         f"with Liger's kernels (served: {LIGER_OPTION}: false)"),
        (job.scenario.framework_version not in ("auto", "0.7.0"), f"under automodel {job.scenario.framework_version}"),
        (mesh.pp > 1, "on pipeline stages (0.7.0 _transformers/infrastructure.py:702: stages are not compiled there)"),
        (mesh.cp > 1, "with context parallelism, whose attention breaks their graphs (0.7.0 distributed/"
                      "context_parallel/utils.py attach_cp_sdpa_hooks)"),
        (job.compute not in ("bf16", "fp16") or bool(job.narrow), f"in {job.narrow or job.compute}"),
        (training.method == "qlora", "over a packed base"),
        (lora.dropout > 0, "with dropout of adapters"), (lora.use_dora, "with DoRA"),
        (training.lengths == "packed", "over packs of sequences"),
        (options.get(ATTENTION_OPTION) not in (None, "sdpa"),
         f"with {ATTENTION_OPTION}: {options.get(ATTENTION_OPTION)}"),
        (options.get("backend.rope") == "quack", "with backend.rope: quack"),
        (options.get(NORM_NAME) not in (None, "torch_fp32"), f"with {NORM_NAME}: {options.get(NORM_NAME)}"),
        (bool(training.frozen), "with frozen parameters"),
        (_turns(job), "where DTensor exchanges A of a row-split adapter rather than gather low-rank gradients (torch "
                      "2.13 distributed/tensor/_collective_utils.py redistribute_cost)"),
        (alone and training.recompute != "none", "on one GPU with activation checkpointing, where norms are wrapped "
                                                 "too (0.7.0 distributed/activation_checkpointing.py "
                                                 "apply_submodule_checkpointing)")) if said), "")


def _turns(job: Job) -> bool:
    """True if A of a row-split adapter would be exchanged over tp for each sequence (`adapters.split.is_turned`)."""
    training, limit = job.scenario.training, turns_adapters_from(job)
    each = 2 * training.micro_batch_size
    sizes = [each * spec.shape[0] * (training.seq_len - spec.shape[1] // job.mesh.tp) for specs in job.graph.tensors
             for spec in specs if spec.path.rpartition(".")[2] in _ROWS and spec.name.endswith("lora_A.weight")]
    return bool(limit) and max(sizes, default=0) > limit


def _window(job: Job) -> int:
    """Returns the smallest window of attention that a sequence fills, which SDPA is told by a mask; 0 without one."""
    return min((branch.block.window for kind in job.graph.kinds for branch in kind.branches if isinstance(
        branch.block, Attention) and 0 < branch.block.window <= job.scenario.training.seq_len), default=0)


def compile_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about compiled layers, as (key, value, kind, source); () without them."""
    if not runs_compiled(job):
        return ()
    return ((_AT, "each decoder layer is one graph: Inductor's buffers as its CPU backend makes them, sums over ranks "
             "inside; norms of Automodel's Llama and Qwen2 are not fused; backward in the order of its graph, of four "
             "that Inductor chooses from; the first step also compiles, which is not timed", "assumed",
             "torch 2.13 Inductor and nemo-automodel 0.7.0 were measured on a CPU "
             "(tests/truth/probe_automodel_compiled.py)"),)
