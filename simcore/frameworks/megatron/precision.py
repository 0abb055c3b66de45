"""Formats under Megatron-Core: what mixed precision and the optimizer's own dtypes allow together.

Core 0.16.1 `optimizer/optimizer_config.py`: only the precision-aware optimizer has dtypes to choose. Of an fp32 master
it keeps the 16 bits that a bf16 parameter lacks (`store_param_remainders`), unless core holds the master itself.

[Note: who holds the master]
Core holds fp32 masters, and fp32 copies of gradients, as without that optimizer, where the optimizer's own fp8_recipe
is neither None nor "delayed" (`use_precision_aware_optimizer_no_fp8_or_ds_fp8`): casting to 8 bits is core's then.
With `optimizer_cpu_offload` the optimizer holds them whatever the recipe.
Bridge's mixed precision sets the optimizer's fp8_recipe, by default "tensorwise", in bf16 runs too (0.3.1
`training/mixed_precision.py` setup; `training/config.py` finalizes the optimizer afterwards). Megatron-LM's arguments
have "delayed" there: `framework_options.fp8_recipe: delayed` says so of a bf16 run.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.job import Draft, Job

__all__ = ["Formats", "formats"]

RULE = "core 0.16.1 optimizer/optimizer_config.py __post_init__"
ALONG = "Megatron-LM training/arguments.py: the hybrid device optimizer reuses the code path of this flag"
RECIPE = "Bridge 0.3.1 recipes/nemotronh/nemotron_3_nano.py:387"


@dataclass(frozen=True, slots=True)
class Formats:
    """Dtypes of a job's parameters, gradients, masters (`master`: the part that is stored) and moments.

    `precise`: the optimizer is precision-aware and holds its masters itself ([Note: who holds the master]). `scatter`:
    the distributed optimizer is on. `offloaded`: fraction of the parameters that the CPU updates. `sent`: dtype in
    which gradients are reduced.
    """

    params: str
    grads: str
    master: str
    moments: str
    precise: bool
    scatter: bool
    offloaded: float = 0.0
    sent: str = ""


def formats(job: Draft, options: dict[str, object], *, sends_apart: bool = False) -> Formats:
    """Returns dtypes and optimizer switches as the scenario asks, by default as in Megatron-Bridge's training recipes.

    `options`: the framework options that the scenario sets, by name; `sends_apart`: gradients have a format of their
    own while they are sent (megatron_fsdp_grad_comm_dtype). Raises IllegalLayout or NotYet for combinations that are
    refused.
    """
    offloaded = _offloaded(job)
    precise = job.flag(options, "use_precision_aware_optimizer", ALONG if offloaded else RECIPE,
                       default=offloaded > 0)
    if offloaded and not precise:
        raise job.illegal("framework_options.use_precision_aware_optimizer", "The optimizer cpu offload must be used "
                          "in conjunction with `--use-precision-aware-optimizer`", ALONG)
    scatter = _scatter(job, options)
    params, grads = _params(job, options), _grads(job, sends_apart=sends_apart)
    (_check_precise if precise else _check_plain)(job, scatter=scatter)
    _check_sgd(job, scatter=scatter and not offloaded)
    optimizer = job.scenario.training.optimizer
    master = job.auto("training.optimizer.master", optimizer.master, "fp32", f"{RECIPE}: main_params_dtype")
    moments = "fp32"
    job.one_of("training.optimizer.moments", optimizer.moments, ("auto", "fp32", "bf16", "fp16"))
    if OPTIMIZERS[optimizer.name].states:
        moments = job.auto("training.optimizer.moments", optimizer.moments, "fp32", f"{RECIPE}: exp_avg_dtype")
    if offloaded < 1 and offloaded and grads != "fp32":
        raise job.not_yet("training.offload.optimizer", f"a part of the optimizer on the host, gradients in {grads}")
    owns = precise and (offloaded > 0 or _owns_master(job, options, master))
    stored = master if offloaded else _stored_master(job, options, master, owns=owns)
    reduced = job.scenario.training.precision.grad_reduce
    sent = reduced if reduced != "auto" and sends_apart else grads
    return Formats(params, grads, stored, moments, owns, scatter, offloaded, sent)


def _owns_master(job: Draft, options: dict[str, object], master: str) -> bool:
    recipe = job.auto("framework_options.fp8_recipe", str(options.get("fp8_recipe", "auto")), "tensorwise",
                      "Bridge 0.3.1 training/mixed_precision.py: the optimizer is told, in bf16 too")
    return master != "fp32" or recipe == "delayed"


def _offloaded(job: Job) -> float:
    """`optimizer_offload_fraction` of `optimizer_cpu_offload` (core 0.16.1 optimizer/cpu_offloading/)."""
    space, fraction = job.scenario.training.offload.part("optimizer")
    job.one_of("training.offload.optimizer", space, ("none", "host"))
    if fraction and OPTIMIZERS[job.scenario.training.optimizer.name].matrix_states:
        raise job.not_yet("training.offload.optimizer", "muon's states on the host")
    return fraction


def _scatter(job: Draft, options: dict[str, object]) -> bool:
    """The distributed optimizer is Adam's and SGD's alone: it cuts matrices that Muon needs whole."""
    key, name = "use_distributed_optimizer", job.scenario.training.optimizer.name
    if not OPTIMIZERS[name].matrix_states:
        return job.flag(options, key, "Bridge 0.3.1 nemotron_3_nano.py:455", default=True)
    if job.compute == "fp16":
        raise job.illegal("training.precision.compute", "muon with fp16 is not supported",
                          "core 0.16.1 optimizer/muon.py:196")
    if job.flag(options, key, "core 0.16.1 optimizer/muon.py:193", default=False):
        raise job.illegal(f"framework_options.{key}", "muon with dist optimizer is not supported",
                          "core 0.16.1 optimizer/muon.py:193")
    return False


def _params(job: Draft, options: dict[str, object]) -> str:
    """fp32 is served around linears in 8 or 4 bits, where core is given neither --bf16 nor --fp16."""
    served = ("fp32",) if job.narrow else ()
    job.one_of("training.precision.compute", job.compute, ("bf16", "fp16", *served))
    if job.compute == "fp32" and job.scenario.framework != "megatron_fsdp":  # FP32Optimizer keeps no master
        raise job.not_yet("training.precision.params", f"parameters in fp32 under {job.scenario.framework}")
    if job.compute == "fp32" and options.get("cross_entropy_loss_fusion") is not False:
        raise job.not_yet("training.precision.params", "parameters in fp32 with cross_entropy_loss_fusion")
    params = job.auto("training.precision.params", job.scenario.training.precision.params, job.compute,
                      "Bridge 0.3.1 training/mixed_precision.py bf16_mixed: params_dtype, the compute dtype")
    job.one_of("training.precision.params", params, (job.compute,))
    return params


def _grads(job: Draft, *, sends_apart: bool) -> str:
    """Format in which gradients are accumulated: they are reduced in the same buffer unless `sends_apart`."""
    precision = job.scenario.training.precision
    for key, given in (("main_grads", precision.main_grads), ("grad_reduce", precision.grad_reduce)):
        job.one_of(f"training.precision.{key}", given, ("auto", "fp32", job.compute))
    if sends_apart:
        return job.auto("training.precision.main_grads", precision.main_grads, job.compute, "Megatron-LM main core/"
                        "distributed/distributed_data_parallel_config.py megatron_fsdp_main_grads_dtype: that of "
                        "parameters")
    if "auto" not in (precision.main_grads, precision.grad_reduce) and precision.main_grads != precision.grad_reduce:
        raise job.illegal("training.precision", f"main_grads {precision.main_grads} and grad_reduce "
                          f"{precision.grad_reduce}: gradients are accumulated and reduced in one buffer",
                          "core 0.16.1 distributed/distributed_data_parallel.py:147: grad_reduce_in_fp32")
    given = precision.main_grads if precision.main_grads != "auto" else precision.grad_reduce
    return job.auto("training.precision.main_grads", given, "fp32",
                    "Bridge 0.3.1 bf16_mixed: grad_reduce_in_fp32=True (SFT and PEFT recipes)")


def _check_plain(job: Job, *, scatter: bool) -> None:
    del scatter
    optimizer = job.scenario.training.optimizer
    if optimizer.master not in ("auto", "fp32"):
        raise job.illegal("training.optimizer.master", f"{optimizer.master}: main_params_dtype can only be fp32 when "
                          "not using precision-aware optimizer", RULE)
    if optimizer.moments not in ("auto", "fp32"):
        raise job.illegal("training.optimizer.moments", f"{optimizer.moments}: exp_avg_dtype can only be fp32 when not "
                          "using precision-aware optimizer", RULE)


def _check_sgd(job: Draft, *, scatter: bool) -> None:
    """Momentum is sgd's alone; its default keeps a buffer."""
    optimizer = job.scenario.training.optimizer
    if optimizer.weight_decay is not None:
        raise job.not_yet("training.optimizer.weight_decay", f"weight decay of Megatron's {optimizer.name}")
    if OPTIMIZERS[optimizer.name].momentum_states:
        if scatter:
            raise job.illegal("training.optimizer.name", f"{optimizer.name}: Only Adam and "
                              "HybridDeviceOptimizer currently supported",
                              "core 0.16.1 optimizer/distrib_optimizer.py:514")
        given = "auto" if optimizer.momentum is None else str(optimizer.momentum)
        job.auto("training.optimizer.momentum", given, "0.9", "core 0.16.1 optimizer/optimizer_config.py:255")
    elif optimizer.momentum:
        raise job.not_yet("training.optimizer.momentum", f"momentum of {optimizer.name}: it changes no bytes")


def _check_precise(job: Job, *, scatter: bool) -> None:
    optimizer, option = job.scenario.training.optimizer, "framework_options.use_precision_aware_optimizer"
    if not OPTIMIZERS[optimizer.name].is_adam:
        raise job.illegal(option, "--use-precision-aware-optimizer only supported with adam", RULE)
    if not scatter:
        raise job.illegal(option, "--use-precision-aware-optimizer only supported with distributed optimizer", RULE)
    if optimizer.master in ("none", "bf16"):
        raise job.illegal("training.optimizer.master", f"{optimizer.master}: FusedAdam only supports fp32/fp16 master "
                          "weights", "TransformerEngine pytorch/optimizers/fused_adam.py")
    if optimizer.master == "fp16" and job.scenario.training.offload.part("optimizer")[1]:
        raise job.not_yet("training.optimizer.master", "fp16 masters of the precision-aware optimizer on the host")


def _stored_master(job: Draft, options: dict[str, object], master: str, *, owns: bool) -> str:
    if not owns:
        if "store_param_remainders" in options:
            raise job.not_yet("framework_options.store_param_remainders", "store_param_remainders without "
                              "use_precision_aware_optimizer and fp8_recipe: delayed: it has no effect")
        return master
    if master != "fp32":  # TransformerEngine pytorch/optimizers/fused_adam.py: remainders are those of fp32
        return master
    halves = job.flag(options, "store_param_remainders", "core 0.16.1 optimizer/optimizer_config.py:187", default=True)
    return "bf16" if halves and job.compute == "bf16" else master  # 16 bits: the other half is the parameter
