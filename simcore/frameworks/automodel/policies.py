"""Policies of NeMo RL: what its workers do otherwise than Automodel's recipes, in SFT and reinforcement learning.

[Note: NeMo RL's pin]
NeMo RL main of 2026-08-22 (7ea279ab) pins Automodel 24b47e856 of 2026-05-01. `models/automodel/setup.py` loads every
model in fp32 (torch_dtype=float32) and switches off what would restore the checkpoint's dtype; the pin does not yet
store frozen parameters in the compute dtype, so a LoRA base rests in fp32, and so do adapters. FSDP2 gathers in bf16
and reduces in fp32. Its loop over microbatches (`models/automodel/train.py`) never sets gradients to wait. Liger's
kernels are off.

`force_hf: true` is `implementation: hub` for Nemotron-H: the pin's parallelizer (`distributed/parallelizer.py`,
NemotronHParallelizationStrategy) goes through `model.backbone.layers`, which only the code of the checkpoint's own
repository has, and which trust_remote_code loads; each expert is a module there. It wraps layers alone, so the root
holds embedding, norm and head, and it replays only layers of Mamba and MLP. Without force_hf, custom classes whose
adapter of state dicts cannot convert a single tensor (Llama, Qwen2) are replaced by those of transformers:
`implementation: hf`.

[Note: outputs in fp32]
Both kinds of DTensor workers wrap layers and root with output_dtype float32 (setup.py:485, `models/dtensor/
parallelize.py:726`): a hook casts what a layer puts out, another what the next is given (torch 2.13
`_fsdp_state.py`, _post_forward, _pre_forward). The last norm computes in fp32, and autocast narrows what lm_head gets.
Counted for transformers' layers; of Automodel's own and of a repository's, two copies in fp32 while a layer runs are
left out.

[Note: tied again]
DTensor's plan makes a parameter of the embedding's table and another of the head's (torch 2.13 `tensor/parallel/
style.py`, _partition_linear_fn), and FSDP2 wraps both. Then `tie_weights` sets one parameter in both modules
(Automodel 24b47e856 `components/checkpoint/checkpointing.py:722`, setup.py:794, `models/policy/workers/
dtensor_policy_worker.py:468`), which both of FSDP2's take over at the first forward (`_fsdp_param.py`,
reset_sharded_param): one rests and is updated, while each is gathered, and each has a gradient. Where a part is padded
each makes a copy of its own.

[Note: the older worker]
`dtensor_cfg._v2: false`, or nothing (`models/policy/lm_policy.py:163`): `models/policy/workers/
dtensor_policy_worker.py`, `models/dtensor/parallelize.py` _parallelize_model. transformers' layers; each is a unit that
reshards, the last too, and the root has embedding, norm and head. Checkpoints are of attention, MLP and both norms one
by one. Before passes of log-probabilities all units are gathered (unshard_fsdp2_model), and the first microbatch leaves
them cut again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.automodel.families import REGISTERED
from simcore.frameworks.common.expert_modules import HUB
from simcore.frameworks.common.kernels import NORM_AND_PRODUCT
from simcore.frameworks.common.liger import LIGER_FAMILIES, LIGER_OPTION, has_liger
from simcore.frameworks.common.torch import offloaded_together
from simcore.models.blocks import Attention, Moe
from simcore.operators.automodel.head import VOCAB_PARALLEL
from simcore.operators.automodel.options import RELEASE_0_7_0
from simcore.operators.hf.options import HfOptions
from simcore.placement.job import Draft, Job

__all__ = ["EVERY", "NEMO_RL", "OLDER", "POLICY_OPTIONS", "casts_outputs", "check_policies", "grad_passes",
           "hub_options", "is_older", "loss_by_default", "offload_parts", "patched_by_liger", "policy_assumptions",
           "rests_on_host", "stored_by_default", "ties_again", "trains_policies", "unreplayed"]

NEMO_RL: Final = "NeMo RL 7ea279ab"
OLDER: Final = "NeMo RL 7ea279ab, _v2 false"
"""Values of `framework_version`; the second: [Note: the older worker]."""
_SETUP: Final = "NeMo RL 7ea279ab models/automodel/setup.py"
_PIN: Final = "Automodel 24b47e856 distributed/parallelizer.py"
EVERY: Final = "NeMo RL 7ea279ab models/automodel/train.py: no microbatch sets gradients to wait"
"""Source of the default of defer_fsdp_grad_sync."""
_CLIPS: Final = "clip_grad_norm"
POLICY_OPTIONS: Final = {_CLIPS: (True, False)}
"""Options that workers of NeMo RL alone have other values of."""
_ASSUMED: Final = [
    ("torch.autocast", "casts nothing beside parameters that FSDP2 gathers in 16 bits", "assumed",
     "NeMo RL 7ea279ab models/policy/workers/dtensor_policy_worker_v2.py get_train_context")]
_OWN: Final = ("deepseek_v3", "nemotron_h", "qwen3_moe")
"""Families whose own layers are served with expert parallelism."""


def trains_policies(job: Job) -> bool:
    """True if the job is a worker of NeMo RL, see [Note: NeMo RL's pin]."""
    return job.scenario.framework_version in (NEMO_RL, OLDER)


def is_older(job: Job) -> bool:
    """True if the job is a worker of [Note: the older worker]."""
    return job.scenario.framework_version == OLDER


def casts_outputs(job: Job) -> bool:
    """True if layers put out fp32, see [Note: outputs in fp32]."""
    return trains_policies(job) and job.graph.implementation == "hf"


def ties_again(job: Job) -> bool:
    """True if a tied head is cut over tp, see [Note: tied again]."""
    return trains_policies(job) and job.mesh.tp > 1 and job.graph.has_tied_head


def grad_passes(job: Draft, options: Mapping[str, Any]) -> int:
    """Returns the times that gradients are read or written before the optimizer's step, see `KernelLibraries`.

    Without a limit workers of NeMo RL take no norm (Automodel 36044ad3d `components/training/utils.py`:288), the older
    one takes it and multiplies nothing (`dtensor_policy_worker.py`:968). Automodel's recipes always have a limit.
    """
    if options.get(_CLIPS) is not False:
        return NORM_AND_PRODUCT
    if not trains_policies(job):
        raise job.illegal(f"framework_options.{_CLIPS}", "gradients are clipped at 1.0 where no norm is given",
                          "Automodel 36044ad3d recipes/llm/train_ft.py:596")
    return 1 if is_older(job) else 0


def policy_assumptions(job: Job) -> list[tuple[str, str, str, str]]:
    """Returns what is assumed of a worker beside Automodel's own assumptions, as (key, value, kind, source)."""
    made, checkpoint = [*_ASSUMED], job.scenario.training.recompute != "none"
    if casts_outputs(job) and not is_older(job) and checkpoint:
        made.append(("training.recompute", "a replayed layer is gathered once more than is counted", "assumed",
                     "transformers 5.5.4 modeling_layers.py, GradientCheckpointingLayer.__call__: hooks of FSDP2 are "
                     "inside the checkpoint, and reshard what they gathered before its backward"))
    if trains_policies(job) and not casts_outputs(job):
        made.append(("outputs of layers", "in the compute dtype", "assumed", f"{_SETUP}:485 casts them to fp32: two "
                     "copies of a hidden state in fp32 while a layer runs are left out"))
    if job.mesh.tp > 1 and casts_outputs(job):
        made.append(("mesh.tp", "q, k, v, gate and up are cut by outputs, o and down by inputs, embedding and head by "
                     "rows; hidden states are whole on every rank", "derived", _PLANS[job.graph.architecture.family]))
    if job.graph.architecture.has_tower and trains_policies(job):
        made.append(("vision tower", "its layers are units, as Automodel 0.7.0 wraps them; layers put out fp32",
                     "assumed", f"{_SETUP}:485; Automodel 0.7.0 distributed/parallelizer.py "
                     "apply_fsdp2_sharding_recursively"))
    if ties_again(job):
        made.append(("tied head over tp", "rests with the embedding, is gathered and reduced by itself", "derived",
                     "torch 2.13 _fsdp_param.py reset_sharded_param, behind NeMo RL's tie_weights"))
    if is_older(job):
        made.append(("gathers before passes", "take the time of those in the passes", "assumed", "NeMo RL 7ea279ab "
                     "models/policy/workers/dtensor_policy_worker.py:136 unshard_fsdp2_model: they overlap nothing"))
    return made


def stored_by_default(job: Job) -> tuple[str, str]:
    """Returns the default dtype of stored parameters, with its source."""
    if trains_policies(job):
        return "fp32", f"{_SETUP}: torch_dtype=float32, _disable_automodel_checkpoint_dtype_restore"
    return "bf16", "from_pretrained(torch_dtype='auto'): the checkpoint's dtype"


def loss_by_default(job: Job) -> tuple[str, str]:
    """Returns the default loss, with its source."""
    if job.graph.implementation == "hub" and trains_policies(job):
        return "hf", ("assumed: a cross entropy of fp32 logits for NeMo RL 7ea279ab distributed/model_utils.py "
                      "get_next_token_logprobs_from_logits")
    if trains_policies(job) and job.mesh.tp > 1 and job.graph.architecture.family not in _GATHERED:
        return VOCAB_PARALLEL, "NeMo RL 7ea279ab distributed/model_utils.py DistributedLogprob"
    return "masked_fp32", "0.7.0 recipes: MaskedCrossEntropy fp32_upcast"


def hub_options(job: Draft, options: dict[str, object]) -> HfOptions:
    """Returns the settings of layers from a checkpoint's repository.

    `options`: the framework options that the scenario sets; of these layers it is attn_implementation alone.
    """
    made = HUB.layer_options(job, {name: options[name] for name in HUB.options if name in options})
    return made if trains_policies(job) else replace(made, automodel=replace(RELEASE_0_7_0, wide_logits=True))


def offload_parts(job: Job) -> tuple[str, ...]:
    """Returns the parts that may rest on the host: those of cpu_offload for workers of NeMo RL, else none."""
    return ("params", "gradients", "optimizer") if trains_policies(job) else ()


def rests_on_host(job: Job) -> bool:
    """True with cpu_offload: parameters, gradients and states rest in memory of the host that is not pinned.

    `models/automodel/setup.py:489`: CPUOffloadPolicy(pin_memory=False); before training the worker moves buffers alone
    to the device (`dtensor_policy_worker_v2.py`, prepare_for_training).
    """
    return trains_policies(job) and job.scenario.training.offload.part("params")[1] > 0


def check_policies(job: Job) -> None:
    """Raises IllegalLayout or NotYet for layers that NeMo RL's pin does not run, or that are not described of it.

    Also for layers from a checkpoint's repository under Automodel's own releases.
    """
    family, own = job.graph.architecture.family, job.graph.implementation
    if trains_policies(job) and job.mesh.pp > 1:
        raise job.illegal("mesh.pp", "workers of DTensor have no pipeline stages: the device mesh is made with pp_size "
                          "1", f"{_SETUP}:511")
    if is_older(job):
        _check_older(job)
    if trains_policies(job):
        _check_offload(job)
        _check_tensor_parallel(job)
    if own == "hub":
        _check_hub(job)
    if trains_policies(job) and own == "automodel":
        _check_own(job, family)


def _check_hub(job: Job) -> None:
    """Raises NotYet for layers of a checkpoint's repository that are not described: under 0.7.0 all but dense ones."""
    training, policies = job.scenario.training, trains_policies(job)
    for axis, size in (("pp", job.mesh.pp), ("cp", job.mesh.cp), ("tp", 1 if policies else job.mesh.tp)):
        if size > 1:
            raise job.not_yet(f"mesh.{axis}", "layers of a checkpoint's repository over more than data")
    if policies:
        HUB.check(job, {})
        return
    for key, said, what in (
            ("framework_version", job.scenario.framework_version not in ("auto", "0.7.0"), "of other releases"),
            ("implementation", job.has_experts, "with experts"),
            ("training.method", training.method == "qlora", "packed"),
            ("training.lengths", training.lengths == "packed", "given packs"),
            ("training.loss", training.loss not in ("auto", "masked", "masked_fp32"), f"with loss {training.loss}")):
        if said:
            raise job.not_yet(key, f"layers of a checkpoint's repository {what} under automodel but for "
                              f"framework_version: {NEMO_RL}")


def _check_own(job: Job, family: str) -> None:
    """Raises IllegalLayout or NotYet for Automodel's own layers that the pin has not, or that are not described."""
    if job.mesh.ep == 1 and family == "nemotron_h":
        raise job.illegal("implementation", "Automodel's NemotronHForCausalLM has no attribute backbone, which its "
                          "parallelizer wraps (force_hf: true runs the repository's layers: write implementation: hub)",
                          f"{_PIN} NemotronHParallelizationStrategy")
    if family in ("llama", "qwen2"):
        raise job.illegal("implementation", f"NeMo RL sets force_hf for {family}, whose adapter of state dicts does "
                          "not implement convert_single_tensor_to_hf: transformers' layers run, not Automodel's own "
                          "(write implementation: hf)", f"{_SETUP} _maybe_set_force_hf")
    if family == "qwen3":
        raise job.illegal("implementation", "the pinned Automodel has no layers of Qwen3ForCausalLM: transformers' run "
                          "(write implementation: hf)",
                          "Automodel 24b47e856 _transformers/registry.py MODEL_ARCH_MAPPING")
    if job.mesh.ep == 1 or family not in _OWN:
        raise job.not_yet("framework_version", f"Automodel's layers of {family} with ep {job.mesh.ep} under {NEMO_RL}")


_BY_PARTS: Final = ("llama", "mistral", "qwen2", "qwen3")
"""Families of which layers that are replayed part by part are described."""
_OLDER_FILE: Final = "NeMo RL 7ea279ab models/policy/lm_policy.py"


def _check_older(job: Job) -> None:
    """Refuses what the older worker does not run, and families of which it is not described."""
    training = job.scenario.training
    if job.graph.implementation != "hf":
        raise job.illegal("implementation", "the older worker runs transformers' layers (implementation: hf)",
                          "NeMo RL 7ea279ab models/policy/workers/dtensor_policy_worker.py:367")
    if training.method == "lora":
        raise job.illegal("training.method", "LoRA is not supported for DTensorPolicyWorker V1", f"{_OLDER_FILE}:178")
    if job.mesh.dp_replicate > 1:
        raise job.illegal("mesh.dp_replicate", "HSDP is not supported with the V1 DTensor worker", f"{_OLDER_FILE}:183")
    if job.graph.architecture.family not in _BY_PARTS:
        raise job.not_yet("framework_version", f"the older worker of {job.graph.architecture.family}")


def _check_offload(job: Job) -> None:
    away = offloaded_together(job, "cpu_offload is FSDP2's CPUOffloadPolicy, which offloads parameters, gradients, and "
                              "optimizer states to CPU", f"{_SETUP}:489")
    if not away:
        return
    if job.mesh.size == 1 and not is_older(job):
        raise job.illegal("training.offload", "CPUOffload doesn't work on single GPU for AutoModel", f"{_SETUP}:500")
    if job.mesh.ep > 1:
        raise job.not_yet("training.offload", "cpu_offload with expert parallelism")


_PLAN_FILE: Final = "Automodel 24b47e856 distributed/optimized_tp_plans.py"
_GATHERED: Final = ("mistral",)
"""Families whose head gathers its logits: transformers' own plan names a style that the pin does not know, so it takes
its base plan (`distributed/parallelizer.py:1432`); the older worker knows it (ColwiseParallelWithGather)."""
_PLANS: Final = {"llama": f"{_PLAN_FILE} _parallelize_llama", "qwen2": f"{_PLAN_FILE} _parallelize_qwen",
                 "qwen3": f"{_PLAN_FILE} _parallelize_qwen", "mistral": f"{_PIN} _get_parallel_plan"}


def _check_tensor_parallel(job: Job) -> None:
    """Refuses what the worker or its pin refuses; plans that would run are not modelled."""
    mesh, sequences = job.mesh, job.scenario.training.sequence_parallel is True
    if mesh.tp == 1:
        return
    if mesh.cp > 1 and sequences:
        raise job.illegal("training.sequence_parallel", "It's a known issue that context parallel can't be used "
                          "together with sequence parallel in DTensor worker", f"{_SETUP}:637")
    if mesh.ep > 1:
        raise job.illegal("mesh.tp", "Tensor parallelism not supported for custom MoE models",
                          "Automodel 24b47e856 moe/parallelizer.py:353")
    if job.graph.implementation == "hub":
        if sequences:
            raise job.illegal("training.sequence_parallel", "Sequence parallelism is not supported for "
                              "NemotronHForCausalLM", f"{_PIN}:335")
        return
    for block in (branch.block for kind in job.graph.kinds for branch in kind.branches):
        if not isinstance(block, Attention):
            continue
        for name, heads in (("num_key_value_heads", block.num_kv_heads), ("num_attention_heads", block.num_heads)):
            if heads % mesh.tp:
                raise job.illegal("mesh.tp", f"{name} ({heads}) must be divisible by TP size ({mesh.tp})",
                                  f"{_PIN}:1190")
    family = job.graph.architecture.family
    if family not in _PLANS:
        raise job.not_yet("mesh.tp", f"DTensor's plan for transformers' layers of {family} ({_PIN} "
                          "get_hf_tp_shard_plan)")
    if sequences:
        _refuse_cut_sequences(job, family)


def _refuse_cut_sequences(job: Job, family: str) -> None:
    if is_older(job) and family in _GATHERED:
        raise job.illegal("training.sequence_parallel", "sequence_parallel is not support in HF tp plan.",
                          "NeMo RL 7ea279ab models/dtensor/parallelize.py:716")
    raise job.not_yet("training.sequence_parallel", f"sequences cut over tp ({_PLANS[family]})")


def unreplayed(job: Job) -> tuple[int, ...]:
    """Returns the numbers of layers that are never replayed: attention and experts from a checkpoint's repository."""
    if job.graph.implementation != "hub":
        return ()
    return tuple(number for number, layer in enumerate(job.graph.layers)
                 if any(isinstance(branch.block, Attention | Moe) for branch in job.graph.kinds[layer.kind].branches))


def patched_by_liger(job: Draft, options: dict[str, object]) -> bool:
    """True if Liger's kernels run: a default of true is left aside for families of which they are not described.

    InputError where the option changes nothing.
    """
    if job.mesh.tp > 1:
        job.refuse_idle(options, LIGER_OPTION, "with tp, which switches it off (0.7.0 _transformers/kernel_patches.py "
                        "_apply_preload_overrides)")
        return False
    if job.graph.architecture.family in REGISTERED:
        job.refuse_idle(options, LIGER_OPTION, "in a class of Automodel's own (0.7.0 _transformers/auto_model.py:593)")
        return False
    known = job.graph.architecture.family in LIGER_FAMILIES and not trains_policies(job)
    has_liger(job, options)
    return job.flag(options, LIGER_OPTION, "0.7.0 _transformers/auto_model.py: use_liger_kernel=True" if known else
                    "assumed: Liger has kernels for it, which are not described", default=known)
