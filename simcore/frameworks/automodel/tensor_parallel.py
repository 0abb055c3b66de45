"""Tensor parallelism of NeMo Automodel's own Llama, Qwen2 and Qwen3 (nemo-automodel 0.7.0).

`components/distributed/optimized_tp_plans.py`, `_parallelize_llama` and `_parallelize_qwen` without sequence_parallel:
outputs of the first linears of attention and MLP are split, inputs of the last ones, and embedding and lm_head by
vocabulary; norms are whole. `components/distributed/parallelizer.py` applies the plan before FSDP2, which cuts what
is left on dimension 0. Gradients of what is whole on every rank are averaged once a step
(`components/distributed/tp_replicas.py`).
"""

from __future__ import annotations

from typing import Final

from simcore.frameworks.automodel.float8 import runs_float8
from simcore.models.blocks import Attention, Mlp
from simcore.models.tensor import TensorSpec
from simcore.operators.automodel.head import LINEAR_LOSSES
from simcore.placement.job import Job
from simcore.placement.layout import Shard

__all__ = ["SPLITS", "check_tensor_parallel", "split_of", "split_assumptions"]

SPLITS: Final = {"output": ("tp", Shard(0, even=True)), "input": ("tp", Shard(1, even=True))}
"""Placements of split tensors, by the side of a linear layer that is split."""
_LAST: Final = ("o_proj", "down_proj")
_PLAN: Final = "0.7.0 components/distributed/optimized_tp_plans.py"


def split_of(spec: TensorSpec) -> str:
    """Returns the side of a tensor that tp splits, "output" or "input"; "" for a tensor that every rank has whole."""
    if spec.module == "norm" or spec.is_buffer:
        return ""
    return "input" if spec.path.endswith(_LAST) else "output"


def check_tensor_parallel(job: Job) -> None:
    """Raises IllegalLayout or NotYet for what the plans refuse, and what is not modelled beside them."""
    mesh, training, vocab = job.mesh, job.scenario.training, job.graph.architecture.vocab
    for kind in job.graph.kinds:
        for branch in kind.branches:
            _check_sizes(job, branch.block)
    for key, said, what in (
            ("training.method", training.method != "full", "adapters of layers that tp splits"),
            ("mesh.pp", mesh.pp > 1, "tp with pipeline stages"), ("mesh.cp", mesh.cp > 1, "tp with cp"),
            ("mesh.dp_shard", mesh.dp_shard == 1, "tp without data-parallel ranks that share a model"),
            ("training.loss", training.loss in LINEAR_LOSSES, f"loss {training.loss} of a weight that tp splits"),
            ("training.lengths", training.lengths == "packed", "packed sequences with tp"),
            ("training.precision.compute", bool(job.narrow) or runs_float8(job), "products in 8 bits with tp"),
            ("model", job.graph.has_tied_head, "a tied table with tp")):
        if said:
            raise job.not_yet(key, f"{what} under automodel")
    if vocab % mesh.tp:
        raise job.not_yet("mesh.tp", f"a vocabulary of {vocab} over tp {mesh.tp} under automodel")


def _check_sizes(job: Job, block: object) -> None:
    tp = job.mesh.tp
    if isinstance(block, Attention):
        for name, heads in (("num_key_value_heads", block.num_kv_heads), ("num_attention_heads", block.num_heads)):
            if heads % tp:
                raise job.illegal("mesh.tp", f"{name} ({heads}) must be divisible by TP size ({tp})",
                                  "0.7.0 components/distributed/parallelizer.py validate_tp_mesh")
    if isinstance(block, Mlp) and block.ffn % tp:
        raise job.not_yet("mesh.tp", f"an MLP of width {block.ffn} over tp {tp} under automodel")


def split_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about tp, as (key, value, kind, source)."""
    return (("mesh.tp", "gradients of norms are averaged over tp once a step: left out", "derived",
             "0.7.0 components/distributed/tp_replicas.py: one flat buffer of them"),
            ("training.sequence_parallel", "false", "derived", f"{_PLAN}: hidden states are whole on every rank"))
