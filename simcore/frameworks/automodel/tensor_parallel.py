"""Tensor parallelism of NeMo Automodel's own Llama, Qwen2 and Qwen3, and of transformers' (nemo-automodel 0.7.0).

`components/distributed/optimized_tp_plans.py`, `_parallelize_llama`, `_parallelize_qwen` and, of transformers alone,
`_parallelize_phi`, without sequence_parallel: outputs of the first linears of attention and MLP are split, inputs of
the last ones, and embedding and lm_head by vocabulary; norms are whole. `components/distributed/parallelizer.py`
applies the plan before FSDP2, which cuts what is left on dimension 0. Gradients of what is whole on every rank are
averaged once a step (`components/distributed/tp_replicas.py`).
"""

from __future__ import annotations

from typing import Final

from simcore.frameworks.automodel.float8 import runs_float8
from simcore.frameworks.automodel.policies import rests_on_host, ties_again, trains_policies
from simcore.models.blocks import Attention, Mamba2, Mlp, Moe
from simcore.models.tensor import TensorSpec
from simcore.operators.automodel.dense import DENSE
from simcore.operators.automodel.head import LINEAR_LOSSES
from simcore.placement.job import Job, topology_of
from simcore.placement.layout import Shard

__all__ = ["SPLITS", "SPLIT_BY_HF", "check_tensor_parallel", "gathers_logits", "is_cut_late", "split_by_inputs",
           "split_of", "split_assumptions", "splits_layers", "turns_adapters_from"]

SPLITS: Final = {"output": ("tp", Shard(0, even=True)), "input": ("tp", Shard(1, even=True))}
"""Placements of split tensors, by the side of a linear layer that is split."""
_LAST: Final = ("o_proj", "down_proj", "dense", "fc2")
_OF_PHI3: Final = ("qkv_proj", "down_proj")
"""Linears whose inputs are split; Phi-3's attention is whole on every rank (`_parallelize_phi3`)."""
_GATHERING: Final = ("falcon_h1", "mistral", "mixtral", "seed_oss")
"""Families whose head gathers its logits: by transformers' own plan (0.7.0 components/distributed/parallelizer.py,
get_hf_tp_shard_plan), in which every rank has all experts, or by `_parallelize_falcon_h1`, which leaves Mamba whole."""
SPLIT_BY_HF: Final = ("llama", "phi", "phi3", "qwen2", "qwen3", *_GATHERING)
"""Families of transformers' layers whose plan is described."""
_BANDWIDTH: Final = int(87.7 * 2**30 / 10**6)
"""Bytes a microsecond that DTensor reckons with inside a node."""
_PLAN: Final = "0.7.0 components/distributed/optimized_tp_plans.py"


def splits_layers(job: Job) -> bool:
    """True if tp splits attention, MLP and both tables, and not the head alone."""
    served = SPLIT_BY_HF if job.graph.implementation == "hf" else DENSE
    return job.mesh.tp > 1 and job.graph.architecture.family in served


def gathers_logits(job: Job) -> bool:
    """True if the head that tp splits gathers its logits."""
    return splits_layers(job) and job.graph.architecture.family in _GATHERING


def split_by_inputs(job: Job) -> tuple[str, ...]:
    """Returns the names of the linears whose inputs tp splits; () if it splits no layers."""
    if not splits_layers(job):
        return ()
    return _OF_PHI3 if job.graph.architecture.family == "phi3" else _LAST


def split_of(spec: TensorSpec, last: tuple[str, ...]) -> str:
    """Returns the side of a tensor that tp splits, "output" or "input"; "" for a tensor that every rank has whole.

    `last`: see `split_by_inputs`.
    """
    whole = spec.is_buffer or spec.component == "router" or spec.module in ("norm", "grouped", "router")
    of_mamba, summed = ".mamba." in f".{spec.name}", len(spec.shape) == 1 and spec.path.endswith(last)
    if whole or of_mamba or summed:
        return ""
    path = spec.path.rpartition(".lora_")[0] if spec.module == "adapter" else spec.path
    return "input" if path.endswith(last) else "output"


def is_cut_late(spec: TensorSpec, last: tuple[str, ...]) -> bool:
    """True if backward makes a whole gradient of a split tensor, which is cut when it is reduced.

    Of the embedding, and of B of a layer whose inputs are split (torch 2.13 `_fsdp_param.py`, unsharded_grad_data).
    """
    return spec.module == "embedding" or spec.name.endswith(tuple(f"{name}.lora_B.weight" for name in last))


def _has_whole_blocks(job: Job) -> bool:
    return any(isinstance(branch.block, Mamba2 | Moe) for kind in job.graph.kinds for branch in kind.branches)


def check_tensor_parallel(job: Job) -> None:
    """Raises IllegalLayout or NotYet for what the plans refuse, and what is not modelled beside them."""
    mesh, training, vocab = job.mesh, job.scenario.training, job.graph.architecture.vocab
    policies = trains_policies(job)
    for kind in job.graph.kinds:
        for branch in kind.branches:
            _check_sizes(job, branch.block)
    for key, said, what in (
            ("mesh.cp", mesh.cp > 1, "tp with cp"),
            ("training.loss", training.loss in LINEAR_LOSSES, f"loss {training.loss} of a weight that tp splits"),
            ("training.loss", training.loss == "values", "a head of values with tp"),
            ("training.method", training.method == "qlora", "a packed base with tp"),
            ("training.method", training.method == "full" and _has_whole_blocks(job),
             "experts or Mamba that every rank of tp trains"),
            ("training.method", policies and training.method != "full", "adapters of layers that tp splits"),
            ("training.lengths", training.lengths == "packed" and (policies or job.graph.implementation == "hf"),
             "packed sequences of transformers' layers with tp"),
            ("training.precision.compute", bool(job.narrow) or runs_float8(job), "products in 8 bits with tp"),
            ("model", job.graph.has_tied_head and not policies, "a tied table with tp"),
            ("training.offload", ties_again(job) and rests_on_host(job), "a tied table with tp on the host"),
            ("model", ties_again(job) and vocab % (mesh.tp * mesh.dp_shard) != 0,
             f"a tied table of {vocab} rows with tp {mesh.tp} that dp_shard {mesh.dp_shard} pads")):
        if said:
            raise job.not_yet(key, f"{what} under automodel")
    if training.method == "lora":
        _check_adapters(job)
    if vocab % mesh.tp:
        raise job.not_yet("mesh.tp", f"a vocabulary of {vocab} over tp {mesh.tp} under automodel")


def _check_adapters(job: Job) -> None:
    """Raises NotYet for adapters over tp that are not described, see `operators/automodel/adapters/split`."""
    lora, tp = job.scenario.training.lora, job.mesh.tp
    if any(spec.module == "adapter" for kind, specs in zip(job.graph.kinds, job.graph.tensors, strict=True)
           for spec in specs if kind.block is not None):
        raise job.not_yet("training.lora.target_modules", "an adapter of an lm_head that automodel splits over tp")
    if lora.dropout:
        raise job.not_yet("training.lora.dropout", "dropout of adapters over tp under automodel")
    if lora.rank % tp:
        raise job.not_yet("training.lora.rank", f"adapters of rank {lora.rank} over tp {tp} under automodel")


def turns_adapters_from(job: Job) -> int:
    """Bytes by which gathered low-rank gradients are more than A's part when both moves take as long; 0 without tp.

    DTensor reckons with 87.7 GiB/s between GPUs of a node, with 0.22 of it between nodes, and adds a microsecond to the
    exchange of A (torch 2.13 distributed/tensor/_collective_utils.py, MeshTopoInfo.build_from_mesh,
    _compute_placement_transition_cost).
    """
    tp = job.mesh.tp
    if tp == 1 or job.scenario.training.method == "full":
        return 0
    bandwidth = _BANDWIDTH if tp <= topology_of(job.scenario).gpus_per_node else _BANDWIDTH * 22 // 100
    return bandwidth * tp // (tp - 1)


def _check_sizes(job: Job, block: object) -> None:
    tp = job.mesh.tp
    if isinstance(block, Attention):
        for name, heads in (("num_key_value_heads", block.num_kv_heads), ("num_attention_heads", block.num_heads)):
            if heads % tp:
                raise job.illegal("mesh.tp", f"{name} ({heads}) must be divisible by TP size ({tp})",
                                  "0.7.0 components/distributed/parallelizer.py validate_tp_mesh")
    if isinstance(block, Mlp) and block.ffn % tp and trains_policies(job):
        training = job.scenario.training
        rows, parts = training.micro_batch_size * training.seq_len, -(-block.ffn // tp)
        raise job.illegal("mesh.tp", f"a and b must have same reduction dim, but got [{rows}, {parts * tp}] X "
                          f"[{block.ffn}, {block.hidden}].", "torch 2.13 distributed/tensor/parallel/style.py "
                          "RowwiseParallel: what a rank has of uneven columns is taken as one of equal parts")
    if isinstance(block, Mlp) and block.ffn % tp:
        raise job.not_yet("mesh.tp", f"an MLP of width {block.ffn} over tp {tp} under automodel")


def split_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about tp, as (key, value, kind, source)."""
    packs = ("training.lengths", "TE's attention of packs runs over the heads of a rank", "derived",
             "0.7.0 components/distributed/context_parallel/utils.py attach_te_context_parallel")
    return (*((packs,) if job.scenario.training.lengths == "packed" else ()),
            ("mesh.tp", "gradients of what every rank has whole, such as norms, are averaged over tp once a step: left "
             "out", "derived",
             "0.7.0 components/distributed/tp_replicas.py: one flat buffer of them"),
            ("training.sequence_parallel", "false", "derived", f"{_PLAN}: hidden states are whole on every rank"))
