"""The trainer llm-foundry 0.3.0 with Composer 0.16 on FSDP: precision, prefetches, optimizer, refusals.

Sources: llm-foundry `models/mpt/modeling_mpt.py`, `scripts/train/yamls/pretrain/mpt-*.yaml`, Composer
`trainer/dist_strategy.py`, `trainer/mosaic_fsdp_utils.py`, `optim/decoupled_weight_decay.py`.

[Note: llm-foundry's units]
Composer 0.16 wraps with FSDP1: each block, and the token embedding, the positions and the final norm apart
(`MPTForCausalLM.__init__`, _fsdp_wrap). The head calls the embedding once more, so it is gathered for both and for the
head's backward. Positions and norm are here the root's, gathered once, and so is all but blocks under `fsdp2`. Clipping
by norm is left out.
"""

from __future__ import annotations

from typing import Any, Final, cast

from simcore.frameworks.common.pipeline import weighed_stages
from simcore.frameworks.common.torch import Defaults, all_or_no_checkpoint, with_fp8_layers
from simcore.frameworks.common.trainer import Trainer
from simcore.models.blocks import Attention, Embedding
from simcore.models.graph import ModelGraph
from simcore.operators.llmfoundry.options import AttentionImplementation, LlmfoundryOptions
from simcore.placement.job import Draft, Job
from simcore.placement.libraries import Logged

__all__ = ["DEFAULTS", "FSDP1", "OPTIONS", "TRAINER", "check", "in_fp8", "options_of"]

_CODE, _TRAINER = "llm-foundry 0.3.0", "Composer 0.16.4"
OPTIONS: dict[str, tuple[Any, ...]] = {
    "wrap": ("layers_root",),
    "reshard_after_forward": (None, True, False),
    "sync_gradients": ("every",),
    "attn_impl": ("triton", "flash"),
}
DEFAULTS = Defaults(
    stored=("fp32", f"{_TRAINER} trainer/mosaic_fsdp_utils.py: shards stay in fp32 under a mixed precision"),
    reduce=("compute", f"{_CODE} scripts/train/yamls/pretrain: mixed_precision: PURE"),
    optimizer=("for_loop", f"{_TRAINER} optim/decoupled_weight_decay.py DecoupledAdamW: one parameter after the other"),
    loss=("llmfoundry", f"{_CODE} models/mpt/modeling_mpt.py: loss_fn = fused_crossentropy"),
    wrap="layers_root", sync="every", root_resharded=False, last_follows=False, loss_inside=False,
    reshard=("true for layers, false for the root", f"{_CODE} scripts/train/yamls/pretrain: sharding_strategy: "
             "FULL_SHARD"))
FSDP1: dict[str, tuple[Any, str]] = {
    "use_orig_params": (True, f"{_TRAINER} trainer/dist_strategy.py set_fsdp_default: use_orig_params"),
    "backward_prefetch": ("BACKWARD_POST", f"{_TRAINER} trainer/dist_strategy.py set_fsdp_default: backward_prefetch"),
    "wrap": ("separate_embedding", f"{_CODE} models/mpt/modeling_mpt.py:501: _fsdp_wrap of what is no block; positions "
             "and the final norm, small beside it, are taken into the root"),
}
"""Composer's defaults where they are not the class's own."""
LOGGED: Final = Logged(calls=11, lists=4)
"""Composer 0.16.4 `trainer/trainer.py`, _train_loop, after each step: an all-reduce of the loss, which the host reads,
and of the numbers of samples and tokens, a broadcast of the time; then both metrics of training (`metrics/nlp.py`, a
sum and a count each) are computed over all ranks: a barrier and an all_gather for each number (torchmetrics 1.0.3
`utilities/distributed.py`, gather_all_tensors)."""


def check(job: Job, options: dict[str, Any]) -> None:
    """Raises IllegalLayout for a job that llm-foundry refuses, NotYet for one that is not modelled.

    `options`: the framework options that the scenario sets, by name.
    """
    mesh, training = job.mesh, job.scenario.training
    job.one_of("training.optimizer.name", training.optimizer.name, ("adamw", "adam", "sgd"))  # not Composer's Lion
    if job.graph.architecture.family != "mpt":
        raise job.not_yet("implementation", f"{job.graph.architecture.family} in the layers of llm-foundry (served: "
                          "mpt)")
    if not job.graph.has_tied_head:
        raise job.illegal("model", "MPTForCausalLM only supports tied word embeddings",
                          f"{_CODE} models/mpt/modeling_mpt.py:491")
    job.one_of("training.loss", training.loss, ("auto",))
    if training.lengths == "packed":
        raise job.not_yet("training.lengths", "packed sequences with llm-foundry's layers")
    if training.method != "full":
        raise job.not_yet("training.method", f"{training.method} with llm-foundry's layers")
    if training.offload.part("activations")[1]:
        raise job.not_yet("training.offload.activations", "activations on the host with llm-foundry's layers "
                          "(Composer's activation_cpu_offload)")
    if mesh.tp > 1:
        raise job.not_yet("mesh.tp", "tensor parallelism with llm-foundry's layers")
    if mesh.dp_replicate > 1:
        raise job.not_yet("mesh.dp_replicate", "replicas of llm-foundry's shards (Composer's process groups)")
    _check_positions(job)
    if options.get("attn_impl") == "flash" and _has_alibi(job):
        raise job.illegal("framework_options.attn_impl", "alibi only implemented with torch and triton attention",
                          f"{_CODE} models/mpt/configuration_mpt.py")


def _check_positions(job: Job) -> None:
    longest = [kind.block.positions for kind in job.graph.kinds if isinstance(kind.block, Embedding)]
    seq_len = job.scenario.training.seq_len
    if 0 < longest[0] < seq_len:
        raise job.illegal("training.seq_len", f"Cannot forward input with seq_len={seq_len}, this model only supports "
                          f"seq_len<={longest[0]}", f"{_CODE} models/mpt/modeling_mpt.py:361")


def _has_alibi(job: Job) -> bool:
    return any(isinstance(branch.block, Attention) and branch.block.alibi for kind in job.graph.kinds
               for branch in kind.branches)


def in_fp8(job: Job) -> ModelGraph:
    """Returns the job's model with linears of blocks in fp8, by TransformerEngine; the head stays torch's."""
    return with_fp8_layers(job.graph)


def options_of(job: Draft, options: dict[str, Any]) -> LlmfoundryOptions:
    """Returns the settings of llm-foundry's layers for a job (`LlmfoundryOptions`): attention, positions, fp8.

    `options`: the framework options that the scenario sets, by name; "triton" is the default attention.
    """
    attention = job.auto("framework_options.attn_impl", options.get("attn_impl", "auto"), "triton",
                         f"{_CODE} models/mpt/configuration_mpt.py attn_config_defaults")
    learned = any(isinstance(kind.block, Embedding) and kind.block.positions for kind in job.graph.kinds)
    fp8 = job.scenario.training.precision.compute == "fp8"
    return LlmfoundryOptions(attn_impl=cast(AttentionImplementation, attention), learned_positions=learned, fp8=fp8)


TRAINER: Final = Trainer(options=OPTIONS, defaults=DEFAULTS, check=check, layer_options=options_of,
                         checkpoint=all_or_no_checkpoint, stages=weighed_stages, in_fp8=in_fp8, logged=LOGGED)
