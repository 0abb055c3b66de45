"""Checks of a job under Megatron-Core: refused jobs, each with its rule (core 0.16.1 unless said otherwise)."""

from __future__ import annotations

from typing import Final

from simcore.inputs.optimizers import optimizers_of
from simcore.models.blocks import Attention, Embedding, GatedDeltaNet, LatentAttention, Mamba2, Mixer, Mlp, Moe, Mtp
from simcore.models.network import Edge
from simcore.operators.megatron.ops.fused_logprobs import FUSED
from simcore.placement.capabilities import ALL_AXES, Capabilities
from simcore.placement.job import Job

__all__ = ["CHUNKED", "check", "check_attention", "check_chunked_loss", "check_fused_loss", "check_head",
           "check_overlap", "check_registered"]


CAPABILITIES: Final = Capabilities(axes=ALL_AXES, offload=("optimizer", "activations"), virtual_stages=True, fixed={
    "training.precision.experts": "auto", "training.lora.dtype": "bf16"})
_TE: Final = "TransformerEngine 2.18 attention/dot_product_attention"
_CAPS: Final = "Bridge 067f987d models/gemma/gemma2_provider.py"


def check_head(job: Job, options: dict[str, object]) -> None:
    """Raises IllegalLayout or NotYet for an output head that cannot compute in 8 bits (fp8_output_proj).

    main `extensions/transformer_engine.py`, TELMHeadColumnParallelLinear; `transformer_config.py`:1569.
    """
    name, rule = "fp8_output_proj", "Megatron-LM main core/extensions/transformer_engine.py:1816"
    if not options.get(name):
        return
    key, refused = f"framework_options.{name}", "TE MXFP8 output projection does not support "
    if not job.scenario.framework_version.startswith("main"):
        raise job.illegal(key, "core 0.16.1 has no such option", "use framework_version: main 2026-08-22")
    if options.get("fp8_recipe") != "mxfp8":
        raise job.illegal(key, "fp8_output_proj requires fp8_recipe='mxfp8'", "main transformer_config.py:1569")
    if _predicts_hybrid(job):
        job.refuse_idle(options, name, "in a hybrid, whose head is core's own (models/hybrid/hybrid_model.py)")
    if options.get("defer_embedding_wgrad_compute"):
        raise job.illegal(key, f"{refused}defer_embedding_wgrad_compute", rule)
    if options.get("tp_comm_overlap"):
        raise job.illegal(key, "Buffer name should be set to configure communication overlap settings",
                          "Megatron-LM main core/extensions/transformer_engine.py:1219")
    if job.graph.has_tied_head and job.mesh.pp == 1:
        raise job.illegal(key, "TE output projection does not support skip_weight_param_allocation", rule)
    for asked, what in ((job.graph.has_tied_head, "that has the embedding's weight"),
                        (job.scenario.training.method != "full", "beside adapters"),
                        (bool(options.get("quant_recipe")), "beside recipes of single linears"),
                        (bool(options.get("disable_parameter_transpose_cache")), "whose weight is cast in each pass")):
        if asked:
            raise job.not_yet(key, f"an output head in 8 bits {what}")


def check(job: Job, *, sequence_parallel: bool) -> None:
    """Raises the error of the first rule that the job breaks; returns nothing for a job that is served.

    IllegalLayout: Megatron refuses it. NotYet: rankscope does not model it. `sequence_parallel`: it is on.
    """
    _check_world(job)
    for kind in job.graph.kinds:
        for branch in kind.branches:
            _check_block(job, branch.block, sequence_parallel=sequence_parallel)
    _check_sequence(job, sequence_parallel=sequence_parallel)
    _check_head(job)
    _check_lora(job)
    _check_mtp(job)
    _check_served(job)


def _check_served(job: Job) -> None:
    """Raises NotYet for what Megatron accepts and this version of rankscope cannot model."""
    training = job.scenario.training
    job.one_of("training.loss", training.loss, ("auto", "megatron", "te", "te_inplace", "top_k", "values", FUSED))
    name, served = training.optimizer.name, optimizers_of("te")
    if name not in served and not (name == "lion" and _is_main(job)):
        raise job.illegal("training.optimizer.name", f"{name} optimizer is not supported.",
                          "core 0.16.1 optimizer/__init__.py:410; of these main has lion alone (emerging_optimizers)")
    job.one_of("training.optimizer.name", name, served)
    job.one_of("training.optimizer.implementation", training.optimizer.implementation, ("auto", "te", "fused"))
    CAPABILITIES.check(job)
    if training.optimizer.paged:
        raise job.not_yet("training.optimizer.paged", "paged optimizer states under megatron")


def check_overlap(job: Job, options: dict[str, object], *, sequence_parallel: bool) -> None:
    """Raises IllegalLayout or NotYet if tp_comm_overlap is on where it cannot be, or is not modelled.

    The option overlaps matrix products with tensor parallel collectives. `sequence_parallel`: it is on. A Mamba layer's
    in_proj and out_proj have the user buffers of an MLP's linears (core 0.16.1 ssm/mamba_mixer.py: fc1, fc2).
    """
    key = "framework_options.tp_comm_overlap"
    if not options.get("tp_comm_overlap"):
        return
    if not sequence_parallel:
        raise job.illegal(key, "Tensor parallel communication/GEMM overlap can happen only when sequence parallelism "
                          "is enabled", "Megatron-LM training/arguments.py")
    mixers = [b.block for kind in job.graph.kinds for b in kind.branches]
    if any(not isinstance(block, Attention | Mlp | Mamba2) for block in mixers):
        raise job.not_yet(key, "tp_comm_overlap of other layers than attention, Mamba and dense MLPs")
    if job.scenario.training.method != "full" and any(isinstance(block, Mamba2) for block in mixers):
        raise job.not_yet(key, "tp_comm_overlap of Mamba layers with adapters")


def check_attention(job: Job, options: dict[str, object]) -> None:
    """Raises IllegalLayout where TransformerEngine has no kernel for the model's attention, or cannot share its heads.

    TransformerEngine 2.18 `pytorch/attention/dot_product_attention/utils.py`, get_attention_backend, and
    `context_parallel.py`.
    """
    cp, exchange = job.mesh.cp, str(options.get("cp_comm_type", "p2p"))
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    for block in blocks:
        if isinstance(block, Attention | LatentAttention) and cp > 1 and exchange == "a2a":
            _check_exchanged_heads(job, block)
    if job.mesh.tp > 1 and any(isinstance(block, Attention) and block.whole_norms for block in blocks):
        raise job.illegal("mesh.tp", "a norm over all heads, of which a tp rank has some: the sizes do not match",
                          "Bridge 067f987d models/olmoe/olmoe_provider.py:113, OLMoESelfAttention")
    if any(isinstance(block, Attention) and block.capped for block in blocks):
        _check_caps(job)
    shared = "" if cp == 1 or exchange == "a2a" else exchange
    if any(isinstance(block, Attention) and block.sinks for block in blocks):
        _check_sinks(job, options, shared)
    elif shared and any(isinstance(block, Attention) and block.window for block in blocks):
        raise job.illegal("framework_options.cp_comm_type", f"attention within a window under context parallelism by "
                          f"{shared}: a2a and all_gather alone have windows", f"{_TE}/context_parallel.py, "
                          "attn_forward_func_with_cp") if shared == "p2p" else job.not_yet(
            "framework_options.cp_comm_type", f"attention within a window under context parallelism by {shared}")


def _check_caps(job: Job) -> None:
    """Refuses what Bridge's attention with scores below a cap, which is not TransformerEngine's, has no kernel for."""
    if job.mesh.cp > 1:
        raise job.illegal("mesh.cp", "Context parallelism is only supported by TEDotProductAttention!", f"{_CAPS}:123")
    if job.scenario.training.lengths == "packed":
        raise job.illegal("training.lengths", "Packed sequence is not supported by DotProductAttention. Use "
                          "TEDotProductAttention instead.", f"{_CAPS}:379")


def _check_exchanged_heads(job: Job, block: Attention | LatentAttention) -> None:
    fewest = block.num_kv_heads if isinstance(block, Attention) else block.num_heads
    for heads in (block.num_heads, fewest):
        if (own := max(heads // job.mesh.tp, 1)) % job.mesh.cp:
            raise job.illegal("mesh.cp", "cp_comm_type='a2a' requires num_heads % cp_size == 0 for Q, K, V: "
                              f"{own} heads a tp rank, cp {job.mesh.cp}", f"{_TE}/context_parallel.py:4243")


def _check_sinks(job: Job, options: dict[str, object], exchange: str) -> None:
    """`exchange`: how ranks share a sequence, "" for not at all or by their heads."""
    if exchange:
        raise job.illegal("framework_options.cp_comm_type", f"attention sinks under context parallelism by {exchange}: "
                          "Context parallelism only supports softmax_type='learnable' with cp_comm_type = 'a2a'",
                          f"{_TE}/context_parallel.py:5067")
    if options.get("attention_backend") == "flash":
        raise job.illegal("framework_options.attention_backend", "attention sinks by flash-attn alone: No dot product "
                          "attention backend is available for the provided inputs", f"{_TE}/utils.py:1028")
    if options.get("fp8_dot_product_attention") and job.compute_capability < (10, 0):
        raise job.illegal("framework_options.fp8_dot_product_attention", "attention sinks in 8 bits before Blackwell: "
                          "No dot product attention backend is available for the provided inputs",
                          f"{_TE}/utils.py:1031")


def check_registered(job: Job, options: dict[str, object]) -> None:
    """Raises IllegalLayout if NCCL registers buffers (nccl_ub) and segments are expandable, in core 0.16.1.

    Main refuses it with torch before 2.11 alone (d98e8a64 distributed/distributed_data_parallel_config.py:262).
    """
    if options.get("nccl_ub") and job.scenario.environment.expandable_segments and not _is_main(job):
        raise job.illegal("environment.expandable_segments", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is "
                          "currently not supported with nccl_ub due to compatibility issue with torch.cuda.MemPool API",
                          "core 0.16.1 distributed/distributed_data_parallel_config.py:156")


def _check_world(job: Job) -> None:
    mesh = job.mesh
    if mesh.ep > 1 and not job.has_experts:
        raise job.illegal("mesh.ep", "the model has no experts to spread over ranks: num_moe_experts must be non "
                          "None to use expert-parallel",
                          "core 0.16.1 transformer_config.py:1049")
    parts = mesh.etp * mesh.ep * mesh.pp
    if mesh.size % parts:
        raise job.illegal("mesh.ep", f"world_size ({mesh.size}) is not divisible by "
                          f"expert_tensor_model_pipeline_parallel size ({parts})",
                          "core 0.16.1 parallel_state.py:792")


def _check_block(job: Job, block: Mixer, *, sequence_parallel: bool) -> None:
    if isinstance(block, Mamba2):
        _check_mamba(job, block)
    elif isinstance(block, GatedDeltaNet):
        _check_delta_net(job, block)
    elif isinstance(block, LatentAttention):
        _divides(job, "tp", block.num_heads, "attention heads", "transformer_config.py: num_attention_heads % tp")
    elif isinstance(block, Attention):
        _divides(job, "tp", block.num_heads, "attention heads", "transformer_config.py: num_attention_heads % tp")
        if block.num_kv_heads % job.mesh.tp and job.mesh.tp % block.num_kv_heads:
            raise job.illegal("mesh.tp", f"{block.num_kv_heads} query groups and tp {job.mesh.tp}: one must divide the "
                              "other", "core 0.16.1 attention.py: query groups over tp")
        if block.gated and job.mesh.tp > block.num_kv_heads:
            _check_gate(job, block)
    elif isinstance(block, Moe):
        _check_moe(job, block, sequence_parallel=sequence_parallel)
    elif isinstance(block, Mlp):
        _divides(job, "tp", block.ffn, "FFN columns", "tensor_parallel/layers.py: divide(output_size, tp)")


def _check_mamba(job: Job, block: Mamba2) -> None:
    mesh = job.mesh
    _divides(job, "tp", block.num_groups, "Mamba groups",
             "ssm/mamba_mixer.py:258: ngroups must be evenly divisible by tp_size")
    _divides(job, "tp", block.num_heads, "Mamba heads", "ssm/mamba_mixer.py: nheads % tp_size")
    if (block.num_heads // mesh.tp) % mesh.cp:
        raise job.illegal("mesh.cp", f"{block.num_heads // mesh.tp} Mamba heads a tp rank must be divisible by cp "
                          f"{mesh.cp}", "core 0.16.1 ssm/mamba_context_parallel.py: nheads_local_tp % cp_size")
    groups = block.num_groups // mesh.tp
    if groups % mesh.cp and mesh.cp % groups:
        raise job.illegal("mesh.cp", f"{groups} Mamba groups a tp rank and cp {mesh.cp}: one must divide the other",
                          "core 0.16.1 ssm/mamba_context_parallel.py: ngroups_local_tp and cp_size")


def _check_gate(job: Job, block: Attention) -> None:
    """Refuses ranks with less than one query group: core 0.16.1 gives them more heads of the gate than of the query."""
    if not _is_main(job):
        raise job.illegal("mesh.tp", f"{block.num_kv_heads} query groups and tp {job.mesh.tp} with a gate of "
                          "attention's output: the gate's heads are not cut as the query's are",
                          "core 0.16.1 transformer/attention.py:1221, gate.view(*x.shape)")


def _check_delta_net(job: Job, block: GatedDeltaNet) -> None:
    """On main ranks that share a sequence share its heads too; packs are not served, and core 0.16.1 has neither."""
    told, packed = "Gated delta net does not support context parallelism", job.scenario.training.lengths == "packed"
    _divides(job, "tp", block.num_key_heads, "linear attention key heads", "transformer_config.py:976")
    if _is_main(job):
        ranks = job.mesh.tp * job.mesh.cp
        if block.num_key_heads % ranks:
            raise job.illegal("mesh.cp", f"self.linear_num_key_heads={block.num_key_heads} must be a multiple of "
                              f"(self.tensor_model_parallel_size={job.mesh.tp} * "
                              f"self.context_parallel_size={job.mesh.cp}).",
                              "Megatron-LM d98e8a64 transformer/transformer_config.py:1502")
        if packed:
            raise job.not_yet("training.lengths", "gated delta nets of packed sequences")
        return
    for key, there, said, source in (
            ("mesh.cp", job.mesh.cp > 1, told, "transformer_config.py:983"),
            ("training.lengths", packed, "GDN does not support packed sequence for now.",
             "ssm/gated_delta_net.py:297")):
        if there:
            raise job.illegal(key, said, f"core 0.16.1 {source}; use framework_version: main 2026-08-22")


def _is_main(job: Job) -> bool:
    return job.scenario.framework_version.startswith("main")


def _check_moe(job: Job, block: Moe, *, sequence_parallel: bool) -> None:
    if block.bias and job.mesh.etp > 1:
        raise job.illegal("mesh.etp", f"Bias in Moe is only supported when ETP==1, got {job.mesh.etp} (left out, it is "
                          "tp)", "core 0.16.1 transformer/transformer_config.py:1589")
    _divides(job, "ep", block.num_experts, "experts", "transformer_config.py: num_moe_experts % ep")
    _divides(job, "etp", block.expert_ffn, "expert columns", "moe/experts.py: FFN width over etp")
    _divides(job, "tp", block.shared_ffn, "shared expert columns", "moe/shared_experts.py: FFN width over tp")
    if job.mesh.tp > 1 and not sequence_parallel:
        raise job.illegal("training.sequence_parallel", "MoE with tensor parallelism trains only with sequence "
                          "parallelism", "core 0.16.1 moe/moe_layer.py:379 (raised in forward, not at build)")


def _check_sequence(job: Job, *, sequence_parallel: bool) -> None:
    mesh, seq_len = job.mesh, job.scenario.training.seq_len
    if sequence_parallel and mesh.tp == 1:
        raise job.illegal("training.sequence_parallel", "Cannot use sequence parallelism without tensor parallelism",
                          "core 0.16.1 model_parallel_config.py:411")
    if mesh.cp > 1 and seq_len % (2 * mesh.cp):
        raise job.illegal("training.seq_len", f"{seq_len} tokens must be divisible by 2 x cp = {2 * mesh.cp}",
                          "core 0.16.1 context parallel: load-balanced halves")
    if sequence_parallel and seq_len // mesh.cp % mesh.tp:
        raise job.illegal("training.seq_len",
                          f"{seq_len // mesh.cp} tokens a cp rank must be divisible by tp {mesh.tp}",
                          "core 0.16.1 sequence parallel scatter")


def _check_head(job: Job) -> None:
    rows = next((kind.block.vocab for kind in job.graph.kinds if isinstance(kind.block, Embedding)),
                job.graph.architecture.vocab)
    _divides(job, "tp", rows, "vocabulary rows",
             "Bridge should_pad_vocab=False: VocabParallelEmbedding divides evenly")


def _check_lora(job: Job) -> None:
    training = job.scenario.training
    if training.method == "full":
        return
    dims = {dim for specs in job.graph.tensors for spec in specs if spec.module == "adapter" for dim in spec.dims}
    for axis in ("tp", "etp"):
        if f"{axis}_rank" in dims and training.lora.rank % job.mesh.axis(axis).size:
            raise job.illegal("training.lora.rank", f"rank {training.lora.rank} must be divisible by {axis} "
                              f"{job.mesh.axis(axis).size}",
                              "Bridge 0.3.1 peft/utils.py: ParallelLinearAdapter column-parallel linear_in")
    _check_lora_of_single_experts(job)
    per_expert = training.lora.expert_adapters == "per_expert"
    if per_expert and job.scenario.framework_version != "main 2026-08-22":
        raise job.illegal("training.lora.expert_adapters", "this Bridge shares one adapter among the local experts",
                          "Bridge 0.3.1 has no share_expert_adapters; use framework_version: main 2026-08-22")


def _check_lora_of_single_experts(job: Job) -> None:
    """Without a grouped GEMM each expert has linears of its own, and each of those its own pair (moe/experts.py)."""
    lora, grouped = job.scenario.training.lora, job.scenario.framework_options.get("moe_grouped_gemm", True)
    named = () if lora.target_modules == "auto" else lora.target_modules
    hit = any(spec.component == "expert_adapters" for specs in job.graph.tensors for spec in specs)
    if job.has_experts and not grouped and (hit or lora.exclude_modules or any("expert" in name for name in named)):
        raise job.not_yet("framework_options.moe_grouped_gemm", "adapters of experts that are no grouped GEMM")


def _check_mtp(job: Job) -> None:
    """Refuses multi-token prediction with settings not modelled, such as a tied head on a stage of its own."""
    if not job.graph.branches:
        return
    if any(isinstance(branch.block, GatedDeltaNet) for kind in job.graph.kinds if isinstance(kind.block, Mtp)
           for branch in kind.branches):
        raise job.illegal("model", "Multi-Token Prediction (MTP) is not yet supported with  attention mask type: the "
                          "last layer, which its module repeats, is a gated delta net",
                          "core 0.16.1 transformer/multi_token_prediction.py:626")
    if job.scenario.training.method != "full":
        _check_adapters_of_mtp(job)
    if _predicts_hybrid(job) and job.scenario.framework_version != "main 2026-08-22":
        raise job.illegal("model", "multi-token prediction of a hybrid needs framework_version: main 2026-08-22",
                          "core 0.16.1 models/mamba/mamba_model.py builds no MTP block; Megatron-LM main "
                          "models/hybrid/hybrid_model.py:302")
    copied = job.graph.leads(Edge.COPY, job.graph.head) or (job.graph.has_tied_head and _predicts_hybrid(job))
    if copied and any(spec.trainable and "vocab" in spec.dims for specs in job.graph.tensors for spec in specs):
        raise job.not_yet("model", "multi-token prediction with tied embeddings over stages or in a hybrid")


def _check_adapters_of_mtp(job: Job) -> None:
    """Adapters of modules of multi-token prediction are those of layers, by the names of their linears."""
    lora = job.scenario.training.lora
    named = (*(lora.target_modules if lora.target_modules != "auto" else ()), *lora.exclude_modules)
    if any(spec.name.startswith("output_layer.") and spec.module == "adapter"
           for specs in job.graph.tensors for spec in specs):
        raise job.not_yet("training.lora", "adapters of an output layer that multi-token prediction runs several times")
    if any(letter in name for name in named for letter in "*."):
        raise job.not_yet("training.lora", "adapters with multi-token prediction by patterns of whole paths")
    if lora.use_dora:
        raise job.not_yet("training.lora.use_dora", "DoRA with multi-token prediction")


def _predicts_hybrid(job: Job) -> bool:
    return job.graph.architecture.family == "nemotron_h"


CHUNKED: Final = "NeMo RL 7ea279ab models/megatron/train.py LossPostProcessor"
"""Source of a loss of log-probabilities in chunks (training.logprob_chunk_size)."""


_FUSED_BY: Final = "NeMo RL 7ea279ab models/megatron/setup.py"


def check_fused_loss(job: Job, options: dict[str, object]) -> None:
    """Refuses settings beside which log-probabilities are not fused with the head, or are not described."""
    key, training, mesh = "training.loss", job.scenario.training, job.mesh
    if training.logprob_chunk_size is None:
        raise job.illegal(key, f"{FUSED} without training.logprob_chunk_size", f"{_FUSED_BY}:1864: "
                          "fused_linear_logprobs_chunk_size")
    if mesh.cp > 1:
        raise job.illegal("mesh.cp", "context parallelism with log-probabilities that are fused with the head",
                          f"{_FUSED_BY}:883: Context Parallelism is not supported with linear CE fusion loss")
    if options.get("overlap_param_gather") is not False and mesh.dp_shard * mesh.dp_replicate > 1:
        raise job.illegal("framework_options.overlap_param_gather", f"overlap_param_gather with {FUSED}",
                          f"{_FUSED_BY}:1396: use_fused_linear_logprobs is incompatible with overlap_param_gather")
    for name, given, what in (
            ("training.sequence_parallel", mesh.tp > 1 and training.sequence_parallel is False, "tp without "
             "sequence_parallel"), ("training.lengths", training.lengths != "fixed", "packs or drawn lengths"),
            ("training.method", training.method != "full", "adapters"), ("model", bool(job.graph.branches),
                                                                         "multi-token prediction"),
            ("training.precision.compute", bool(job.narrow), "products in 8 bits")):
        if given:
            raise job.not_yet(name, f"log-probabilities that are fused with the head, with {what}")


def check_chunked_loss(job: Job, options: dict[str, object]) -> None:
    """Refuses settings that a loss of log-probabilities in chunks does not read, or beside which it is not modelled."""
    key, training = "training.logprob_chunk_size", job.scenario.training
    for name, given in (("training.loss", training.loss != "auto"),
                        ("framework_options.cross_entropy_loss_fusion", "cross_entropy_loss_fusion" in options)):
        if given:
            raise job.illegal(name, f"it is of a cross entropy, and with {key} the loss is made of log-probabilities",
                              CHUNKED)
    if training.lengths != "fixed":
        raise job.not_yet(key, "log-probabilities in chunks of packs or drawn lengths")
    if options.get("defer_embedding_wgrad_compute"):
        raise job.not_yet(key, "log-probabilities in chunks with defer_embedding_wgrad_compute")


def _divides(job: Job, axis: str, size: int, what: str, rule: str) -> None:
    degree = job.mesh.axis(axis).size
    if size % degree:
        raise job.illegal(f"mesh.{axis}", f"{size} {what} must be divisible by {axis} {degree}", f"core 0.16.1 {rule}")
