"""The trainer torchtitan 0.2.2 on FSDP2: its options, checkpointing by operator, and its tensor parallel plan.

Sources: `models/llama3/infra/parallelize.py`, `distributed/activation_checkpoint.py`, `config/job_config.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.frameworks.common.afterwards import TITAN_LOOP
from simcore.frameworks.common.kernels import SDPA_BACKENDS
from simcore.frameworks.common.pipeline import weighed_stages
from simcore.frameworks.common.torch import Defaults, with_fp8_layers
from simcore.frameworks.common.trainer import Trainer
from simcore.frameworks.fsdp2.torchtitan_experts import (
    assumptions,
    check_compiled_experts,
    check_experts,
    counts_over,
    experts_axes,
    experts_dim,
    keeps_exchange,
    note_replays,
)
from simcore.frameworks.fsdp2.torchtitan_oss import check_oss, note_oss
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.inputs.training import Recompute
from simcore.models.blocks import Attention, LatentAttention
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.pipeline.schedule import ZERO_BUBBLE
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Placements, Shard

__all__ = ["TRAINER"]

OPTIONS: dict[str, tuple[Any, ...]] = {
    "wrap": ("layers_root", "separate_embedding_head"),
    "set_last_reshard": (None, True, False),
    "prefetch": (None, int),
    "reshard_after_forward": (None, True, False),
    "sync_gradients": ("every",),  # train.py never turns FSDP2's reduction off
    "early_stop": (True, False),
    "disable_loss_parallel": (True, False),
    "compile": (True, False, "model", "loss"),
    "fp8_all_gather": (True, False),
    "fp8_recipe": ("tensorwise", "rowwise"),
    "repeat_kv": (True, False),
    "keeps_exchange": (True, False),
    "async_tp": (True, False),
    "return_outputs": (True, False),
    "sdpa_backend": (None, *SDPA_BACKENDS),
    "attn": ("sdpa", "flex"),
}
PLAN = "torchtitan 0.2.2 models/llama3/infra/parallelize.py"
DEFAULTS = Defaults(
    stored=("fp32", "sharded fp32 parameters under a policy"),
    reduce=("fp32", "torchtitan 0.2.2 config/job_config.py: mixed_precision_reduce"),
    optimizer=("fused", "torchtitan 0.2.2 config/job_config.py: fused"),
    loss=("torchtitan", "torchtitan 0.2.2 components/loss.py"),
    wrap="separate_embedding_head", sync="every", root_resharded=False, last_follows=True, loss_inside=False,
    reshard=("true, false for norm and output", f"{PLAN} apply_fsdp: default"),
    axes=("tp", "etp", "cp", "pp", "virtual_stages", "split_backward"),
    reshard_in_stages=("false", f"{PLAN} apply_fsdp: not pp_enabled"))


def _note_flex(job: Draft, options: Mapping[str, Any]) -> None:
    if options.get("attn") == "flex":
        job.note("attention by flex_attention", "as flash attention, of whole sequences", "an assumption: torch 2.13 "
                 "_higher_order_ops/flex_attention.py saves what flash attention does, by operator its inputs too "
                 "(wrap.py, inductor_compiled_code); documents' masks are not known")


@dataclass(frozen=True, slots=True)
class Family:
    """A family as torchtitan has it: its name there, and what differs from Llama 3.

    `splits_all`: its plan of tensor parallelism is served in all layers. `compiles`: blocks are compiled where that is
    asked for. `has_stages`: it has pipeline stages. `check`: refuses its jobs, with their options; `note`: notes what
    is assumed of it.
    """

    name: str
    splits_all: bool = False
    compiles: bool = True
    has_stages: bool = True
    check: Callable[[Job, Mapping[str, Any]], None] = lambda job, options: None
    note: Callable[[Draft, Mapping[str, Any]], None] = _note_flex


FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("Llama 3", splits_all=True), "qwen3": Family("Qwen3", has_stages=False),
    "qwen3_moe": Family("Qwen3-MoE", has_stages=False), "deepseek_v2": Family("DeepSeek V3"),
    "deepseek_v3": Family("DeepSeek V3"), "llama4_text": Family("Llama 4", splits_all=True),
    "gpt_oss": Family("GPT-OSS", splits_all=True, compiles=False, check=check_oss, note=note_oss)}
"""Families by `model_type`."""
RANKS = ("q_rank", "kv_rank")
COLUMNS, ROWS = ("heads", "kv_heads", "ffn", "vocab"), ("heads", "ffn")
_EVEN = "view(bs, seqlen, -1, head_dim) of what a column-parallel linear puts out"


def check(job: Job, options: dict[str, Any]) -> None:
    """Raises IllegalLayout for a job that torchtitan refuses, NotYet for one that is not modelled."""
    mesh, training = job.mesh, job.scenario.training
    family = job.graph.architecture.family
    if family not in FAMILIES:
        raise job.not_yet("implementation", f"{family} in the layers of torchtitan (served: {', '.join(FAMILIES)})")
    FAMILIES[family].check(job, options)
    _check_tensor_parallel(job, family, options)
    if job.has_experts:
        check_experts(job)
    job.one_of("training.loss", training.loss, ("auto",))
    if not OPTIMIZERS[training.optimizer.name].is_adam:
        raise job.illegal("training.optimizer.name", f"Optimizer {training.optimizer.name} not added.",
                          "torchtitan 0.2.2 components/optimizer.py:319: Adam and AdamW")
    job.refuse_capacity("torchtitan 0.2.2 models/moe/moe.py:408 TokenReorderer: no choice is dropped")
    if training.lengths == "packed":
        raise job.not_yet("training.lengths", "packed sequences with torchtitan's layers")
    if training.method != "full":
        raise job.illegal("training.method", f"torchtitan has no adapters ({training.method})",
                          "torchtitan 0.2.2 components/quantization: its converters are float8 and mx alone")
    _check_compiled(job, family, options)
    _check_attention(job, family, options)
    if mesh.pp > 1 and not FAMILIES[family].has_stages:
        raise job.illegal("mesh.pp", "Pipeline Parallel is enabled but qwen3 does not support pipelining",
                          "torchtitan 0.2.2 train.py:220; models/qwen3/__init__.py: pipelining_fn=None")
    if mesh.dp_shard * mesh.cp == 1:
        raise job.not_yet("mesh.dp_shard", "torchtitan without FSDP (autocast; fp32 with tensor parallelism)")
    _check_tied(job, options)
    divisor = mesh.tp * (2 * mesh.cp if mesh.cp > 1 else 1)
    if training.seq_len % divisor:
        told = f"tp {mesh.tp}" + (f" x 2 x cp {mesh.cp}" if mesh.cp > 1 else "")
        raise job.illegal("training.seq_len", f"{training.seq_len} must be divisible by {told}",
                          f"{PLAN} parallelize_llama: seq_len % seq_len_divisor")
    _check_cuts(job)
    if training.pipeline.schedule in ZERO_BUBBLE:
        _check_halves(job, options)


def _check_tied(job: Job, options: dict[str, Any]) -> None:
    """Raises IllegalLayout for a head tied to the embedding, each a unit, as torch does before the first forward."""
    if not job.graph.has_tied_head:
        return
    if options.get("wrap") == "layers_root":
        raise job.not_yet("model", "tied embeddings in the layers of torchtitan")
    raise job.illegal("model", "Parameter 'output.weight' is shared with a parameter already managed by another FSDP "
                      "group: embedding and head are units of their own", "torch 2.13 distributed/fsdp/_fully_shard/"
                      "_fsdp_state.py _validate_no_duplicate_params; torchtitan 0.2.2 apply_fsdp")


def _check_compiled(job: Job, family: str, options: dict[str, Any]) -> None:
    if options.get("async_tp") and not _compiles_blocks(job, options):
        raise job.illegal("framework_options.async_tp", "Async TP requires 'model' in --compile.components and "
                          "--compile.enable", "torchtitan 0.2.2 distributed/tensor_parallel.py maybe_enable_async_tp")
    if options.get("async_tp") and job.scenario.training.recompute == "none":
        raise job.not_yet("framework_options.async_tp", "asynchronous tensor parallelism without checkpointing")
    if _compiles_blocks(job, options) and (job.has_experts or family.startswith("deepseek")):
        check_compiled_experts(job, FAMILIES[family].name, options)


def _compiles_blocks(job: Job, options: Mapping[str, Any]) -> bool:
    """Returns True if torch.compile runs on the blocks, not only on the loss; GPT-OSS's never are."""
    family = FAMILIES.get(job.graph.architecture.family)  # formats are asked about before families are
    return options.get("compile") in (True, "model") and (family is None or family.compiles)


def _check_attention(job: Job, family: str, options: dict[str, Any]) -> None:
    """Raises IllegalLayout for FlexAttention with context parallelism, NotYet where upstream has it (Llama)."""
    if options.get("attn") != "flex" or job.mesh.cp == 1:
        return
    if family == "llama":
        raise job.not_yet("framework_options.attn", "flex_attention with context parallelism")
    raise job.illegal("framework_options.attn", "Context Parallel only supports SDPA attention. Got attn_type='flex'",
                      "torchtitan 0.2.2 models/*/infra/parallelize.py")


def _check_tensor_parallel(job: Job, family: str, options: dict[str, Any]) -> None:
    """Qwen3's plan keeps heads as DTensors up to the output projection; it was measured in eager layers without cp."""
    if job.mesh.tp == 1 or FAMILIES[family].splits_all:
        return
    beside = "context parallelism" if job.mesh.cp > 1 else "compiled blocks" if _compiles_blocks(job, options) else ""
    if beside:
        raise job.not_yet("mesh.tp", f"tensor parallelism of torchtitan's {FAMILIES[family].name} beside {beside}")


def _check_halves(job: Job, options: dict[str, Any]) -> None:
    at = "training.pipeline.schedule"
    if _compiles_blocks(job, options):
        raise job.illegal(at, "a zero-bubble schedule is not supported with stage modules that have used torch.compile",
                          "torch 2.13 distributed/pipelining/schedules.py _check_torch_compile_compatibility")
    if job.has_experts or job.mesh.tp * job.mesh.cp > 1:
        raise job.not_yet(at, "backward passes in two halves with experts, tensor or context parallelism")


def _check_cuts(job: Job) -> None:
    tp = job.mesh.tp
    vocab = job.graph.architecture.vocab
    if vocab % tp:
        raise job.not_yet("mesh.tp", f"{vocab} entries of the vocabulary on {tp} ranks, unevenly")
    for kind in job.graph.kinds:
        for branch in kind.branches:
            if isinstance(branch.block, LatentAttention) and branch.block.num_heads % tp:
                raise job.illegal("mesh.tp", f"{branch.block.num_heads} heads must be divisible by tp {tp}",
                                  f"torchtitan 0.2.2 models/deepseek_v3/model/model.py: {_EVEN}")
            if isinstance(branch.block, Attention) and branch.block.num_kv_heads % tp:
                raise job.illegal("mesh.tp", f"{branch.block.num_kv_heads} key and value heads must be divisible by "
                                  f"tp {tp}", f"torchtitan 0.2.2 models/*/model/model.py: {_EVEN}")


def in_fp8(job: Job) -> ModelGraph:
    """Returns the model with linears of blocks as torchao's Float8Linear, with a scale for a tensor or for a row.

    The output layer keeps its dtype. NotYet unless blocks are compiled and checkpointed.
    """
    options = job.options(OPTIONS)
    if not _compiles_blocks(job, options):
        raise job.not_yet("training.precision.compute", "compute in fp8 in blocks that are not compiled")
    if job.scenario.training.recompute == "none":
        raise job.not_yet("training.precision.compute", "compute in fp8 in compiled blocks without checkpointing")
    if options.get("fp8_recipe") and options.get("fp8_all_gather"):
        raise job.illegal("framework_options.fp8_all_gather", "using `enable_fsdp_float8_all_gather` together with "
                          "`recipe_name` is not supported",
                          "torchtitan 0.2.2 components/quantization/float8.py Float8LinearConverter")
    return with_fp8_layers(job.graph)


def gathered_weights(job: Draft) -> str:
    """Returns the dtype in which weights of blocks are gathered: "fp8" or that of the computation.

    torchao 0.18 float8/fsdp_utils.py.
    """
    if job.scenario.training.precision.compute != "fp8":
        return job.compute
    narrow = job.flag(job.options(OPTIONS), "fp8_all_gather",
                      "torchtitan 0.2.2 config/job_config.py: enable_fsdp_float8_all_gather = False", default=False)
    return "fp8" if narrow else job.compute


def checkpoint(job: Job) -> str:
    """Returns the activation checkpointing: "none", "full" or "per_op" (`selective_ac_option = "op"`).

    NotYet for others.
    """
    recompute = job.scenario.training.recompute
    if recompute in ("none", "full"):
        return str(recompute)
    if isinstance(recompute, Recompute) and recompute.mode == "per_op":
        if recompute.modules:
            raise job.not_yet("training.recompute.modules", "another list of operators than torchtitan's own")
        return "per_op"
    if _layers_a_checkpoint(job):
        return "full"
    raise job.not_yet("training.recompute", "other checkpointing under torchtitan (served: none, full, modes every "
                      "and per_op)")


def _layers_a_checkpoint(job: Job) -> int:
    """Layers of which the last is recomputed (`selective_ac_option = "2"`), 0 in another mode."""
    recompute = job.scenario.training.recompute
    if not isinstance(recompute, Recompute) or recompute.mode != "every":
        return 0
    if recompute.modules:
        raise job.illegal("training.recompute.modules", "layers are recomputed whole in mode every",
                          "torchtitan 0.2.2 distributed/activation_checkpoint.py _apply_layer_sac")
    if _compiles_blocks(job, job.scenario.framework_options) or job.scenario.training.pipeline.virtual_stages > 1:
        raise job.not_yet("training.recompute", "one layer in some under torchtitan with compiled blocks or several "
                          "chunks of a rank")
    return recompute.num_layers


def kept_whole(job: Job, stages: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Returns the layers, by number in the whole model, that keep what they save beside recomputed ones.

    `stages`: layer numbers of each stage, whose process counts its own layers: one in `num_layers` is recomputed.
    Empty in other modes. Source: torchtitan 0.2.2 `distributed/activation_checkpoint.py` _apply_layer_sac.
    """
    size = _layers_a_checkpoint(job)
    blocks = [[layer for layer in stage if job.graph.kinds[job.graph.layers[layer].kind].block is None]
              for stage in stages]
    return tuple(layer for stage in blocks for count, layer in enumerate(stage, 1) if size and count % size)


def options_of(job: Draft, options: dict[str, Any]) -> TorchtitanOptions:
    """Returns the settings of torchtitan's layers for a job (`TorchtitanOptions`), with their defaults.

    `options`: the framework options that the scenario sets, by name.
    """
    stop = job.flag(options, "early_stop", "torchtitan 0.2.2 config/job_config.py: early_stop = False", default=False)
    whole = job.mesh.tp > 1 and job.flag(options, "disable_loss_parallel",
                                         "torchtitan 0.2.2 config/job_config.py: disable_loss_parallel = False",
                                         default=False)
    stages, compiled = job.mesh.pp > 1, options.get("compile", False)
    if job.scenario.training.precision.compute != "fp8":
        job.refuse_idle(options, "fp8_all_gather", "without fp8")
        job.refuse_idle(options, "fp8_recipe", "without fp8")
    if not stages:
        job.refuse_idle(options, "return_outputs", "without pipeline stages")
    else:
        job.flag(options, "return_outputs", "torchtitan 0.2.2 train.py: return_outputs=False", default=False)
    if compiled:
        job.auto("framework_options.compile", "auto", "Inductor's buffers as its CPU backend makes them; rings of "
                 "context parallelism and a loss over a split vocabulary as eager",
                 "an assumption: torch 2.13 was measured with its CPU backend, not with CUDA's, and not these two")
    FAMILIES[job.graph.architecture.family].note(job, options)
    if job.mesh.tp == 1:
        job.refuse_idle(options, "async_tp", "without tensor parallelism")
    note_replays(job)
    repeated = job.flag(options, "repeat_kv", "torchtitan 0.2.2 models/*/model/model.py: enable_gqa", default=False)
    return TorchtitanOptions(early_stop=stop, keeps_logits=stages, disable_loss_parallel=whole, repeat_kv=repeated,
                             keeps_exchange=keeps_exchange(job, options), whole_batch=_splits_sequences(job),
                             compiled_blocks=_compiles_blocks(job, options), compiled_loss=compiled in (True, "loss"),
                             async_tp=_asynchronous(job, options), fp8_rows=options.get("fp8_recipe") == "rowwise",
                             flex=options.get("attn") == "flex")


def _asynchronous(job: Draft, options: dict[str, Any]) -> bool:
    """Returns True if collectives of tensor parallelism run beside products."""
    if options.get("async_tp"):
        job.auto("framework_options.async_tp", "auto", "products in pieces beside copies between GPUs",
                 "an assumption: memory of the tensor parallel group is symmetric, as before torchtitan 69cf2075 and "
                 "from 73759474 on; 0.2.2, between both, does not make it so, and Inductor fuses nothing there")
    return bool(options.get("async_tp"))


def _splits_sequences(job: Draft) -> bool:
    """[Note: context parallel inputs] Every rank of a group loads the same sequences and cuts its part out of them.

    torchtitan 0.2.2 `distributed/context_parallel.py`, prepare_context_parallel_input: positions are int32; the trainer
    holds whole tokens and labels until the step is over. torch 2.13 `experimental/_context_parallel/_attention.py`.
    """
    if job.mesh.cp > 1:
        job.note("context parallel attention",
            "keys and values all-gathered, balanced from head and tail",
            "torchtitan 0.2.2 config/job_config.py: context_parallel_rotate_method, context_parallel_load_balancer")
    return job.mesh.cp > 1


def tp_layout(spec: TensorSpec) -> Placements:
    """Returns how tensor parallelism cuts a tensor, as (mesh axis, placement) pairs; empty if it is whole.

    Weights are [out, in]: column-parallel linears, head and embedding are cut on rows (dimension 0), as their biases
    and sinks of heads, row-parallel ones on columns (1), norms, routers, other biases and projections down to a rank
    are whole. Experts, [experts, out, in], are cut by their width.
    """
    if spec.component == "router" or spec.dims[0] in RANKS:
        return ()
    if spec.component == "routed_experts":
        return (("tp", Shard(spec.dims.index("expert_ffn"), even=True)),) if "expert_ffn" in spec.dims else ()
    if spec.dims[0] in COLUMNS:
        return (("tp", Shard(0, even=True)),)
    if len(spec.shape) == 1:
        return ()
    assert spec.dims[1] in ROWS, spec.name
    return (("tp", Shard(1, even=True)),)


TRAINER: Final = Trainer(options=OPTIONS, defaults=DEFAULTS, check=check, layer_options=options_of,
                         checkpoint=checkpoint, kept_whole=kept_whole, stages=weighed_stages,
                         tp_layout=tp_layout, in_fp8=in_fp8, gathered_weights=gathered_weights, experts_dim=experts_dim,
                         experts_axes=experts_axes, gathers_experts_ahead=True, hot_ranks=True, counts_over=counts_over,
                         assumptions=assumptions,
                         evaluation=TITAN_LOOP,
                         files=("sharded", "sharded"))  # 0.2.2 train.py:148 meta device, components/checkpoint.py DCP
