"""Checks of a job under NeMo Automodel 0.7.0: the jobs that it refuses, each with its rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.frameworks.automodel.attention import ATTENTION_OPTION
from simcore.frameworks.automodel.compiled import check_compiled
from simcore.frameworks.automodel.families import BY_TRANSFORMERS, check_over_experts
from simcore.frameworks.automodel.mixers import check_mixers
from simcore.frameworks.automodel.optimizers.fused_adam import runs_fused_adam
from simcore.frameworks.automodel.pipeline import check_pipeline, stages_of
from simcore.frameworks.automodel.policies import NEMO_RL, check_policies, offload_parts, trains_policies
from simcore.frameworks.automodel.tensor_parallel import SPLIT_BY_HF, check_tensor_parallel, splits_layers
from simcore.frameworks.common.transformers import check_factors
from simcore.models.blocks import Attention, Mlp, Moe
from simcore.models.vision_blocks import TOWER_LAYERS, VisionPart
from simcore.operators.automodel.sparse import SPARSE
from simcore.placement.capabilities import ALL_AXES, Capabilities
from simcore.placement.job import Job

__all__ = ["QUANTISED", "check"]

CAPABILITIES: Final = Capabilities(
    axes=ALL_AXES, no_capacity="0.7.0 moe/experts.py: tokens are never dropped",
    fixed={"training.precision.main_grads": "auto"},
    absent={"activations": ("Automodel has no setting by which saved activations are moved to the host",
                            "0.7.0 components/distributed/config.py: activation_checkpointing alone")})
QUANTISED = "0.7.0 _transformers/model_init.py __init_model"

def check(job: Job) -> None:
    """Raises the error of the first rule that the job breaks; returns nothing for a job that is served.

    IllegalLayout: Automodel itself refuses the job. NotYet: rankscope does not model it.
    """
    _check_packed(job)
    if not any(spec.component == "expert_adapters" for specs in job.graph.tensors for spec in specs):
        job.refuse_idle(job.scenario.framework_options, "moe_rank_scaling", "where experts get no adapters")
    check_policies(job)
    _check_resting(job)
    _check_hf(job)
    _check_mesh(job)
    _check_sparse(job)
    check_mixers(job)
    check_over_experts(job)
    _check_towers(job)
    _check_packs_of_images(job)
    _check_frozen(job)
    _check_tied(job)
    _check_predictions(job)
    _check_tensor_parallel(job)
    check_pipeline(job)
    check_compiled(job)
    _check_context_parallel(job)
    loss = job.scenario.training.loss
    own = job.graph.implementation == "hub" and trains_policies(job)
    losses = ("auto", "hf", "hf_keep_logits", "top_k", "values") if own else (
        "auto", "masked_fp32", "masked", "te_inplace", "cut", "chunked", "causal", "top_k", "values")
    job.one_of("training.loss", loss, losses)
    if loss == "values" and job.mesh.pp * job.mesh.cp > 1:
        raise job.not_yet("training.loss", "a head of values with pipeline or context parallelism")
    if loss == "causal" and (job.mesh.tp > 1 or job.mesh.pp > 1 or job.mesh.cp > 1):
        raise job.not_yet("training.loss", "the model's own loss (causal) with tensor, pipeline or context parallelism")
    if not runs_fused_adam(job):
        job.refuse_given({"training.optimizer.master": "none"})
    replace(CAPABILITIES, offload=offload_parts(job), virtual_stages=job.mesh.pp > 1).check(job)


def _check_packed(job: Job) -> None:
    """Refuses qlora but for transformers' dense layers: its loader packs them, and Automodel adds its adapters."""
    if job.scenario.training.method != "qlora":
        return
    if job.graph.implementation != "hf":
        raise job.illegal("implementation", "custom implementations do not support BnB quantization natively: "
                          "transformers' layers are run (implementation: hf)", QUANTISED)
    if job.has_experts:
        raise job.not_yet("training.method", "qlora of a model with experts under automodel")
    if job.scenario.training.precision.params not in ("auto", job.compute):
        raise job.not_yet("training.precision.params", "a packed base beside parameters of another type than the "
                          "products under automodel")


def _check_predictions(job: Job) -> None:
    """Raises NotYet beside multi-token prediction for what was not measured with it."""
    training, mesh = job.scenario.training, job.mesh
    if not job.graph.branches:
        return
    for key, said, what in (
            ("mesh.pp", mesh.pp > 1, "stages"), ("mesh.cp", mesh.cp > 1, "context parallelism"),
            ("mesh.tp", mesh.tp > 1, "tensor parallelism"),
            ("framework_version", job.scenario.framework_version not in ("auto", "0.7.0"), "other releases than 0.7.0"),
            ("training.loss", training.loss not in ("auto", "masked_fp32", "masked", "cut"), f"loss {training.loss}"),
            ("training.frozen", bool(training.frozen) and not job.graph.architecture.has_tower, "frozen parameters"),
            ("training.precision.compute", bool(job.narrow), "products in 8 bits")):
        if said:
            raise job.not_yet(key, f"{what} with multi-token prediction under automodel")


_MASKED_IMAGES: Final = {
    "gemma3": "tokens of an image see each other, by masks (transformers 5.23 models/gemma3, "
              "create_masks_for_vision_model)",
    "mistral3": "its tower adds a mask of all pairs of patches (transformers 5.23 models/pixtral, "
                "generate_block_attention_mask)",
}
"""Families with masks that other kernels take in their own ways, and whose they are."""


_REPLAYED: Final = ("gemma3", "gemma4")
"""Families with towers whose replayed layers, or parts of them, were measured."""


_AT_REST: Final = ("mistral3", "qwen2_5_vl", "qwen3_vl")
"""Families of transformers' layers whose towers were measured at rest."""
_POLICIES_AT_REST: Final = ("mistral3", "qwen2_5_vl")
"""Those that were measured as policies of NeMo RL too; of Qwen 3 VL more was told than was measured."""


def _sees_as_policy(job: Job) -> bool:
    """True for a policy of NeMo RL whose tower was measured: that of Qwen 2.5 VL, trained with all else, or at rest."""
    training, family = job.scenario.training, job.graph.architecture.family
    found = family in _POLICIES_AT_REST if job.graph.architecture.resting else (
        family == "qwen2_5_vl" and not training.frozen)
    return (found and job.scenario.framework_version == NEMO_RL and job.mesh.size > 1 and job.mesh.tp == 1
            and training.method == "full" and training.recompute == "none"
            and not training.offload.part("params")[1])


def _freezes_at_rest_alone(job: Job) -> bool:
    """True if nothing is frozen but what rests."""
    return all(spec.trainable or spec.is_buffer or spec.rests for specs in job.graph.tensors for spec in specs)


def _check_hf(job: Job) -> None:
    """Layers of transformers: sharded over data alone."""
    mesh, family = job.mesh, job.graph.architecture.family
    if job.graph.implementation != "hf":
        return
    _check_experts_of_gemma4(job)
    if mesh.ep > 1:
        raise job.illegal("mesh.ep", f"Expert parallelism (ep_size={mesh.ep}) requires a MoE model, but transformers' "
                          "does not inherit from MoEFSDPSyncMixin", "0.7.0 _transformers/capabilities.py:516")
    check_factors(job)
    if family not in BY_TRANSFORMERS:
        raise job.not_yet("implementation", f"transformers' layers of {family} under automodel")
    for axis, size in (("tp", 1 if family in SPLIT_BY_HF else mesh.tp), ("cp", mesh.cp)):
        if size > 1 and not (axis == "tp" and trains_policies(job)):
            raise job.not_yet(f"mesh.{axis}", f"transformers' layers of {family} under automodel over more than data "
                              "and stages")
    if mesh.pp > 1:
        _check_stages_of_transformers(job)
    if job.scenario.training.frozen and job.scenario.framework_version not in ("auto", "0.7.0") and not (
            job.graph.architecture.resting and _freezes_at_rest_alone(job)):
        raise job.not_yet("training.frozen", f"frozen parameters under automodel {job.scenario.framework_version}")
    towers = job.graph.architecture.has_tower or bool(job.graph.architecture.resting)
    if towers and job.scenario.framework_version not in ("auto", "0.7.0") and not _sees_as_policy(job):
        raise job.not_yet("framework_version", f"a vision tower under automodel {job.scenario.framework_version}")
    if towers and job.scenario.training.recompute != "none" and family not in _REPLAYED:
        raise job.not_yet("training.recompute", "activation checkpointing of a model with a vision tower")
    if family == "gemma4":
        _check_gemma4(job)
    masks = _MASKED_IMAGES.get(family) if job.graph.architecture.has_tower else None
    if masks and job.scenario.framework_options.get(ATTENTION_OPTION) != "eager":
        raise job.not_yet(f"framework_options.{ATTENTION_OPTION}", "another attention than eager in a model that reads "
                          f"images: {masks}")
    job.refuse_given({"training.lora.expert_adapters": "none", "training.sequence_parallel": "False"})


def _check_packs_of_images(job: Job) -> None:
    """Raises NotYet for packs of sequences with images but those of Qwen 3 VL by flash-attn 2."""
    graph, option = job.graph, job.scenario.framework_options.get(ATTENTION_OPTION)
    if not graph.architecture.has_tower or job.scenario.training.lengths != "packed":
        return
    if graph.implementation != "hf" or graph.architecture.family != "qwen3_vl":
        raise job.not_yet("training.lengths", f"packs of sequences with images of {graph.architecture.family} by the "
                          f"layers of {graph.implementation} under automodel (served: qwen3_vl)")
    if option != "flash_attention_2":
        raise job.not_yet(f"framework_options.{ATTENTION_OPTION}", "packs of sequences with images in another "
                          "attention than flash_attention_2, which are given a mask of all pairs (0.7.0 datasets/vlm/"
                          "collate_fns.py neat_packed_vlm_collater)")


def _check_experts_of_gemma4(job: Job) -> None:
    if job.graph.architecture.decoder == "gemma4_text" and job.has_experts:
        raise job.not_yet("model", "Automodel's own layers of Gemma 4 with experts (0.7.0 models/gemma4_moe/model.py "
                          "Gemma4MoEDecoderLayer)")


def _check_gemma4(job: Job) -> None:
    """Raises NotYet for what was not measured of Gemma 4 without experts."""
    if job.scenario.training.recompute != "none" and any(kind.own_input for kind in job.graph.kinds):
        raise job.not_yet("training.recompute", "activation checkpointing of layers with inputs of their own")
    if job.scenario.framework_options.get(ATTENTION_OPTION) != "eager" and not _has_mask(job):
        raise job.not_yet(f"framework_options.{ATTENTION_OPTION}", "SDPA of Gemma 4 in fp32 (0.7.0 models/gemma4_moe/"
                          "sdpa_fp32.py) where no layer has a mask")


def _has_mask(job: Job) -> bool:
    """True if layers with a window have a mask: by tokens of an image that see each other, or a sequence as long."""
    return any(isinstance(branch.block, Attention) and (
        branch.block.two_way or 0 < branch.block.window <= job.scenario.training.seq_len)
               for kind in job.graph.kinds for branch in kind.branches)


_STAGED = ("llama", "mistral", "mixtral", "qwen2", "qwen3")


def _check_stages_of_transformers(job: Job) -> None:
    """Raises NotYet for what was not measured: other families, and layers that are given masks.

    Packs have none: they run flash attention (0.7.0 _transformers/kernel_patches.py, _apply_preload_overrides).
    """
    training, family = job.scenario.training, job.graph.architecture.family
    if family not in _STAGED:
        raise job.not_yet("mesh.pp", f"stages of transformers' layers of {family} under automodel (served: "
                          f"{', '.join(_STAGED)})")
    windowed = any(isinstance(branch.block, Attention) and 0 < branch.block.window <= training.seq_len
                   for kind in job.graph.kinds for branch in kind.branches)
    if windowed or job.scenario.framework_options.get(ATTENTION_OPTION) == "eager":
        raise job.not_yet("mesh.pp", "stages of transformers' layers with masks under automodel")


SPARSE_CLASSES = ("nemotron_h", *SPARSE)
"""Families whose class inherits MoEFSDPSyncMixin: it is served with ep > 1 even where no layer has experts."""
_DEFAULT_EXPERTS = 8


def _check_mesh(job: Job) -> None:
    mesh = job.mesh
    if mesh.dp_replicate > 1 and mesh.dp_shard == 1:
        raise job.illegal("mesh.dp_replicate", f"dp_replicate_size={mesh.dp_replicate} must be less than dp_size="
                          f"{mesh.dp_replicate * mesh.dp_shard} since DDP usecase is not supported by FSDP2",
                          "0.7.0 distributed/mesh_utils.py:311")
    if mesh.stage_size % mesh.ep:
        raise job.illegal("mesh.ep", f"non_pp_size={mesh.stage_size} must be a multiple of ep_size={mesh.ep}",
                          "0.7.0 distributed/mesh_utils.py:318")
    if mesh.etp > 1:
        raise job.illegal("mesh.etp", "routed experts are split by count and by ep_shard, not by width over etp",
                          "0.7.0 moe/parallelizer.py")
    if mesh.ep > 1 and not job.has_experts and job.graph.architecture.decoder not in SPARSE_CLASSES:
        raise job.illegal("mesh.ep", f"Expert parallelism (ep_size={mesh.ep}) requires a MoE model",
                          "0.7.0 _transformers/capabilities.py:518")
    if job.graph.architecture.family == "nemotron_h" and not job.has_experts and _DEFAULT_EXPERTS % mesh.ep:
        raise job.illegal("mesh.ep", f"n_routed_experts {_DEFAULT_EXPERTS} (the configuration's default: no layer has "
                          f"any) must be divisible by expert_parallel_degree {mesh.ep}",
                          "0.7.0 moe/parallelizer.py:1244, transformers 5.23 NemotronHConfig.n_routed_experts")
    for kind in job.graph.kinds:
        for branch in kind.branches:
            if isinstance(branch.block, Moe) and branch.block.num_experts % mesh.ep:
                raise job.illegal("mesh.ep", f"n_routed_experts {branch.block.num_experts} must be divisible by "
                                  f"expert_parallel_degree {mesh.ep}", "0.7.0 moe/parallelizer.py:1244")


def _check_sparse(job: Job) -> None:
    """Only the path of expert parallelism has been read for most, and of the snapshot only what concerns DeepSeek-V3.

    Of the models that came after it (glm4_moe, Ling) only the release has been read.
    """
    family, mesh = job.graph.architecture.decoder, job.mesh
    version = job.scenario.framework_version
    if version == "main 2026-06-08" and family != "deepseek_v3":
        raise job.not_yet("framework_version", "main 2026-06-08 with other models than deepseek_v3")
    sparse = SPARSE.get(family) if job.graph.implementation == "automodel" else None
    if sparse is None:
        return
    if sparse.routes_alone and mesh.ep == 1:
        raise job.not_yet("mesh.ep", f"automodel's {family} without expert parallelism")
    if family not in ("deepseek_v3", "qwen3_moe") and version not in ("auto", "0.7.0"):
        raise job.not_yet("framework_version", f"{family} under automodel {version}")
    for axis, size in (("cp", mesh.cp), ("pp", mesh.pp)):
        if size > 1 and axis not in sparse.splits:  # _transformers/capabilities.py lets it pass all the same
            raise job.not_yet(f"mesh.{axis}", f"{axis} {size} under automodel with {sparse.model}, which says that it "
                              f"does not support it (0.7.0 models/{sparse.folder}/model.py: supports_{axis} False)")


def _check_resting(job: Job) -> None:
    """Raises NotYet for a tower that is given no images but those that were measured."""
    if not job.graph.architecture.resting:
        return
    served = (*(("hf", family) for family in _AT_REST), ("automodel", "mistral3"), ("automodel", "qwen3_5"),
              ("automodel", "qwen3_5_moe"))
    if (job.graph.implementation, job.graph.architecture.family) not in served:
        raise job.not_yet("training.images", "a model with a vision tower that is given text alone, of "
                          f"{job.graph.architecture.family} by the layers of {job.graph.implementation} under "
                          "automodel")
    if job.scenario.training.method == "qlora":
        raise job.not_yet("training.method", "qlora of a model with a vision tower")


def _check_towers(job: Job) -> None:
    """Raises NotYet for stages behind a tower, and for one that is trained beside what was not measured with it."""
    graph, options = job.graph, job.scenario.framework_options
    if not graph.architecture.has_tower:
        return
    if graph.implementation == "automodel" and graph.architecture.family == "mistral3":
        raise job.not_yet("training.images", "images before Automodel's own Mistral 4, which are not measured")
    fed = {layer.index for layer in graph.layers if graph.kinds[layer.kind].fed}
    if fed and job.mesh.pp > 1 and fed - set(stages_of(job)[0]):
        raise job.not_yet("mesh.pp", "features of a vision tower for layers of a later stage, which has none (0.7.0 "
                          "models/qwen3_vl_moe/model.py)")
    layers = [layer for layer in graph.layers if isinstance(graph.kinds[layer.kind].block, TOWER_LAYERS)]
    if not any(spec.trainable for layer in layers for spec in graph.tensors[layer.kind]):
        return
    for key, said, what in (
            ("mesh.ep", job.mesh.ep > 1 and graph.architecture.family != "kimi_vl", "with expert parallelism"),
            ("training.recompute", job.scenario.training.recompute != "none", "with activation checkpointing"),
            ("framework_options.enable_fsdp2_prefetch", options.get("enable_fsdp2_prefetch") is True,
             "whose layers are gathered ahead by order")):
        if said:
            raise job.not_yet(key, f"a vision tower that is trained {what} under automodel")


def _check_frozen(job: Job) -> None:
    """Raises NotYet for frozen parameters of Automodel's own layers; those of a vision tower are transformers'."""
    training, graph = job.scenario.training, job.graph
    if graph.implementation != "automodel" or not training.frozen or training.method != "full":
        return
    frozen = [layer.path for layer in graph.layers if not isinstance(graph.kinds[layer.kind].block, VisionPart)
              and any(not (spec.trainable or spec.is_buffer or spec.rests) for spec in graph.tensors[layer.kind])]
    if frozen:
        raise job.not_yet("training.frozen", f"frozen parameters under automodel with its own layers ({frozen[0]})")


def _check_tensor_parallel(job: Job) -> None:
    mesh, unsplit = job.mesh, SPARSE.get(job.graph.architecture.decoder)
    if mesh.tp > 1 and unsplit:
        raise job.illegal("mesh.tp", f"Tensor parallelism (tp_size={mesh.tp}) requested but {unsplit.model} has no TP "
                          "plan", f"0.7.0 models/{unsplit.folder}/model.py: supports_tp False")
    if mesh.tp > 1 and mesh.ep > 1:
        raise job.illegal("mesh.tp", "no safe tensor-parallel plan is registered for custom MoE model "
                          f"'NemotronHForCausalLM' at tp_size={mesh.tp}", "0.7.0 moe/parallelizer.py:301")
    if mesh.tp > 1 and job.graph.architecture.family == "nemotron_h":
        _check_split_parts(job)
    family = job.graph.architecture.family
    if family in ("llama", "qwen2", "qwen3", "qwen3_moe"):
        job.refuse_given({"training.sequence_parallel": "False"})
    if splits_layers(job):
        check_tensor_parallel(job)
    if job.scenario.training.sequence_parallel is True:
        raise job.illegal("training.sequence_parallel", "sequence parallelism is not supported for this model",
                          "0.7.0 models/nemotron_v3/parallelization.py:68")


def _check_split_parts(job: Job) -> None:
    """Refuses what Nemotron-H's parallelizer splits over tp besides the weight of lm_head.

    Those are the MLPs of layers that are nothing else, and the adapters of lm_head (0.7.0
    models/nemotron_v3/parallelization.py: mixer.up_proj and down_proj; parallel_styles.py, ColwiseParallelLora).
    """
    if any(isinstance(branch.block, Mlp) for kind in job.graph.kinds for branch in kind.branches):
        raise job.not_yet("mesh.tp", "automodel's tensor-parallel plan of Nemotron-H's MLP layers")
    if _adapts_head(job):
        raise job.not_yet("training.lora.target_modules", "an adapter of an lm_head that automodel splits over tp")


_UNTIED_ONLY = {"nemotron_h": "NemotronHForCausalLM", **{family: one.model for family, one in SPARSE.items()}}
"""Models whose class says tie_word_embeddings_support = TieSupport.UNTIED_ONLY."""


def _adapts_head(job: Job) -> bool:
    return any(spec.module == "adapter" for kind, specs in zip(job.graph.kinds, job.graph.tensors, strict=True)
               for spec in specs if kind.name == "head")


def _check_tied(job: Job) -> None:
    if job.graph.has_tied_head and job.scenario.training.method == "qlora" and _adapts_head(job):
        raise job.not_yet("training.lora.target_modules", "an adapter of a tied lm_head beside a packed base under "
                          "automodel")
    apart = _UNTIED_ONLY.get(job.graph.architecture.decoder)
    if job.graph.has_tied_head and apart and job.graph.implementation != "hf":
        raise job.illegal("model", f"{apart} has separate input and output embeddings and does not support "
                          "tie_word_embeddings=True", "0.7.0 models/common/tie_word_embeddings.py: "
                          "TieSupport.UNTIED_ONLY")


def _check_context_parallel(job: Job) -> None:
    cp, seq_len = job.mesh.cp, job.scenario.training.seq_len
    if cp > 1 and job.scenario.training.lengths == "packed" and job.scenario.framework_options.get("attn") == "sdpa":
        raise job.illegal("mesh.cp", f"Context parallelism (cp_size={cp}) with packed sequences is not supported: "
                          "switch to the TE attention backend (attn: te)", "0.7.0 recipes/llm/train_ft.py:680, "
                          "_transformers/capabilities.py supports_cp_with_sequence_packing")
    if cp > 1 and seq_len % (2 * cp):
        raise job.illegal("training.seq_len", f"{seq_len} tokens must be divisible by 2 x cp = {2 * cp}",
                          "0.7.0 context parallel: load-balanced halves")
