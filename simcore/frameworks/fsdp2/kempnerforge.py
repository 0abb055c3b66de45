"""The trainer KempnerForge 5666d0d16153 on FSDP2: its wrapping, its precision, and its tensor parallel plan.

Sources: `distributed/parallel.py`, `distributed/tensor_parallel.py`, `distributed/setup.py`, `config/training.py`,
`training/grad.py`, `training/optimizer.py`, `scripts/train.py`.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.frameworks.common.kernels import FUSED, SDPA_BACKENDS
from simcore.frameworks.common.pipeline import even_stages
from simcore.frameworks.common.torch import Defaults
from simcore.frameworks.common.trainer import Trainer
from simcore.inputs.training import Capacity, Draws, Imbalance
from simcore.models.blocks import Attention, Moe
from simcore.models.tensor import TensorSpec
from simcore.operators.kempnerforge.options import KempnerforgeOptions
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Placements, Shard

__all__ = ["TRAINER"]

_CODE = "KempnerForge 5666d0d16153"
OPTIONS: dict[str, tuple[Any, ...]] = {
    "wrap": ("layers_root",),
    "reshard_after_forward": (None, True),  # apply_fsdp2 is called without it
    "sync_gradients": ("last",),  # maybe_no_sync
    "packed_experts": (True, False),
    "compile": (True, False),
    "sdpa_backend": (None, *SDPA_BACKENDS),
}
DEFAULTS = Defaults(
    stored=("compute", f"{_CODE} config/training.py param_dtype: the model itself is cast, no fp32 master"),
    reduce=("fp32", f"{_CODE} distributed/parallel.py default_mp_policy"),
    optimizer=("fused", f"{_CODE} config/optimizer.py: fused"),
    loss=("kempnerforge", f"{_CODE} config/training.py: loss_fn = cross_entropy"),
    wrap="layers_root", sync="last", root_resharded=True, last_follows=True, loss_inside=False,
    reshard=("true, for the root too", f"{_CODE} distributed/parallel.py apply_fsdp2: reshard_after_forward = True"),
    axes=("tp", "pp"),
    reshard_in_stages=("true, for the root too", f"{_CODE} scripts/train.py: apply_fsdp2 without it"),
    whole_in_stages=("lm_head",), returns_outputs=True)
_PLAN = f"{_CODE} distributed/tensor_parallel.py"
_COLUMNS, _ROWS = ("heads", "kv_heads", "ffn", "vocab"), ("heads", "ffn")
_COMPILED = ("framework_options.compile", "as eager, but gathers of one input are one, and pointwise kernels move "
             f"{FUSED} of the bytes", "assumed",
             "not modelled: a compiled layer keeps no more than an eager one, and launches less")
_CHECKPOINTED = ("training.recompute", "compiled all the same", "assumed", "torch 2.13 fails to compile tensor "
                 "parallel layers with checkpoints (a saved AsyncCollectiveTensor); KempnerForge ran them with another")


def check(job: Job, options: dict[str, Any]) -> None:
    """Raises IllegalLayout for a job that KempnerForge refuses, NotYet for one that is not modelled."""
    mesh, training = job.mesh, job.scenario.training
    family = job.graph.architecture.family
    if family not in ("llama", "mixtral"):
        raise job.not_yet("implementation", f"{family} in the layers of KempnerForge (served: llama, mixtral)")
    job.one_of("training.loss", training.loss, ("auto",))
    job.one_of("training.optimizer.name", training.optimizer.name, ("adamw", "adam", "sgd"))
    if training.lengths == "packed":
        raise job.not_yet("training.lengths", "packed sequences with KempnerForge's layers")
    if training.method != "full":
        raise job.not_yet("training.method", f"{training.method} with KempnerForge's layers")
    if mesh.size == 1:
        raise job.not_yet("mesh", "KempnerForge on one device: it has no mesh then, and FSDP2 is left out")
    if mesh.dp_replicate > 1 and mesh.dp_shard * mesh.tp == 1:
        raise job.illegal("mesh.dp_replicate", "a mesh of replicas alone is sharded: write dp_shard",
                          f"{_CODE} distributed/parallel.py get_dp_mesh")
    if job.graph.has_tied_head:
        raise job.not_yet("model", "tied embeddings in the layers of KempnerForge")
    if mesh.ep > 1:
        raise job.not_yet("mesh.ep", "KempnerForge's expert parallelism (attention and experts wrapped apart)")
    if mesh.pp > 1 and job.has_experts:
        raise job.not_yet("mesh.pp", "KempnerForge's experts in pipeline stages")
    if mesh.tp > 1 and job.has_experts:
        raise job.not_yet("mesh.tp", "KempnerForge's experts with tensor parallel attention")
    if training.seq_len % mesh.tp:
        raise job.not_yet("training.seq_len", f"{training.seq_len} positions on {mesh.tp} ranks, unevenly")
    _check_precision(job)
    _check_cuts(job, options)


def assumptions(job: Job, options: dict[str, Any]) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumptions about compiled layers: (key, value, kind, source); none if they are not compiled."""
    if not options.get("compile"):
        return ()
    checkpoints = job.mesh.tp > 1 and job.scenario.training.recompute != "none"
    return (_COMPILED, _CHECKPOINTED) if checkpoints else (_COMPILED,)


def _check_precision(job: Job) -> None:
    precision = job.scenario.training.precision
    if precision.params not in ("auto", job.compute):
        raise job.illegal("training.precision.params", f"{precision.params} parameters for {job.compute} products: the "
                          "model is cast to one type", DEFAULTS.stored[1])
    if precision.grad_reduce not in ("auto", "fp32"):
        raise job.illegal("training.precision.grad_reduce", "gradients are always reduced in fp32, not in "
                          f"{precision.grad_reduce}", DEFAULTS.reduce[1])
    if job.has_experts and job.compute not in ("bf16", "fp16"):
        raise job.not_yet("training.precision.compute", f"experts in {job.compute}: KempnerForge loops over them then")
    if isinstance(job.scenario.training.routing, Capacity):
        raise job.not_yet("training.routing", "a capacity of KempnerForge's experts")
    if isinstance(job.scenario.training.routing, Draws):
        raise job.not_yet("training.routing", "routing drawn at random in KempnerForge's blocks of experts")


def _check_cuts(job: Job, options: dict[str, Any]) -> None:
    tp, vocab = job.mesh.tp, job.graph.architecture.vocab
    if vocab % tp:
        raise job.not_yet("mesh.tp", f"{vocab} entries of the vocabulary on {tp} ranks, unevenly")
    for kind in job.graph.kinds:
        for branch in kind.branches:
            if isinstance(branch.block, Attention) and branch.block.num_kv_heads % tp:
                raise job.illegal("mesh.tp", f"{branch.block.num_kv_heads} key and value heads must be divisible by "
                                  f"tp {tp}", f"{_CODE} model/attention.py: view(batch, seq_len, -1, head_dim) of what "
                                  "a column-parallel linear puts out")
    if options.get("packed_experts"):
        _check_packed(job)


def _check_packed(job: Job) -> None:
    experts = {spec.copies for kind in job.graph.tensors for spec in kind if spec.component == "routed_experts"}
    if any(count % job.mesh.dp_shard for count in experts):
        raise job.not_yet("framework_options.packed_experts", f"packed experts on {job.mesh.dp_shard} shards, unevenly")


def checkpoint(job: Job) -> str:
    """Returns the activation checkpointing: "none", "full", or "per_module" ("selective": only attention).

    NotYet for others.
    """
    recompute = job.scenario.training.recompute
    if recompute in ("none", "full"):
        return str(recompute)
    if recompute == ("attention",):
        return "per_module"
    raise job.not_yet("training.recompute", "other checkpoints in KempnerForge's layers (served: none, full, "
                      "[attention])")


def options_of(job: Draft, options: dict[str, Any]) -> KempnerforgeOptions:
    """Returns the settings of KempnerForge's layers for a job (`KempnerforgeOptions`), with their defaults.

    `options`: the framework options that the scenario sets, by name. The blocks of all experts are as long as that of
    the fullest: `imbalance` times the mean.
    """
    if job.mesh.pp > 1:
        job.note("outputs of the last stage",
            "all microbatches' logits, kept and joined", f"{_CODE} scripts/train.py: pp_schedule.step returns them")
        return KempnerforgeOptions(is_stage=True)
    if not job.has_experts:
        job.refuse_idle(options, "packed_experts", "in a model without experts")
        return KempnerforgeOptions(compiled=bool(options.get("compile")) and job.mesh.tp > 1)
    fullest = _fullest(job)
    packed = job.flag(options, "packed_experts", f"{_CODE} config/model.py: moe_packed_experts = False", default=False)
    return KempnerforgeOptions(imbalance=max(fullest, 1.0), packed_experts=packed)


def _fullest(job: Draft) -> float:
    """Load of the fullest expert over the mean.

    [Note: an untrained router] KempnerForge's own model, scaled down and trained from its initial weights, sends all
    tokens of some layer to the same experts within ten steps (tests/truth/routing). A job that begins there has its
    peak then. A router that was trained before is another: `routing: balanced`, the least that experts take.
    """
    routing = job.scenario.training.routing
    if isinstance(routing, Imbalance):
        return routing.imbalance
    if routing != "auto":
        return 1.0
    fullest = max(branch.block.num_experts / branch.block.top_k for kind in job.graph.kinds for branch in kind.branches
                  if isinstance(branch.block, Moe))
    job.note("training.routing",
        f"all tokens of a layer on the same experts, {fullest:g} times the mean", "an untrained router: KempnerForge's "
        "own model from its initial weights, scaled down, within ten steps; "
        f"{_CODE} model/moe.py makes every expert's block as long as the fullest")
    return fullest


def tp_layout(spec: TensorSpec) -> Placements:
    """Returns how tensor parallelism cuts a tensor, as (mesh axis, placement) pairs; empty if it is whole.

    Weights are [out, in]: column-parallel linears, the head too, are cut on rows (dimension 0), row-parallel ones on
    columns (1); norms, embedding, router and experts are whole.
    """
    if len(spec.shape) == 1 or spec.component in ("embedding", "router", "routed_experts"):
        return ()
    if spec.dims[0] in _COLUMNS:
        return (("tp", Shard(0, even=True)),)
    assert spec.dims[1] in _ROWS, spec.name
    return (("tp", Shard(1, even=True)),)


TRAINER: Final = Trainer(options=OPTIONS, defaults=DEFAULTS, check=check, layer_options=options_of,
                         checkpoint=checkpoint, stages=even_stages, tp_layout=tp_layout, assumptions=assumptions)
