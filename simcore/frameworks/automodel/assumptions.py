"""Assumptions of a report under NeMo Automodel: values that were assumed or derived, besides the defaults."""

from __future__ import annotations

from simcore.frameworks.automodel.attention import packed_assumptions, runs_flex
from simcore.frameworks.automodel.compiled import compile_assumptions
from simcore.frameworks.automodel.optimizers.choice import optimizer_assumptions
from simcore.frameworks.automodel.pipeline import STAGES
from simcore.frameworks.automodel.policies import policy_assumptions, trains_policies
from simcore.frameworks.automodel.te_fp8 import fp8_assumptions
from simcore.frameworks.automodel.tensor_parallel import split_assumptions, splits_layers
from simcore.frameworks.common.hot_ranks import hot_ranks_assumption
from simcore.frameworks.common.torch import time_of_offload
from simcore.models.blocks import Moe
from simcore.operators.automodel.sparse import QWEN3_5, SPARSE
from simcore.placement.job import Draft

__all__ = ["assumptions", "is_forced"]

_INSTALLED = ("framework_options.use_liger_kernel", "Liger-Kernel is installed", "assumed", "0.7.0 _transformers/"
              "kernel_patches.py: without it transformers' layers run as they are, with a warning")
_READ = ("framework_version", "layers as recorded of 0.7.0, with what the release's code does otherwise", "assumed",
         "0.3.0 and 0.4.0 moe/parallelizer.py, moe/layers.py, read, not run: checkpoints run router and dispatch again")
_LATENT = ("attention", "by TE on cuDNN; backward sums dq in fp32", "assumed", "0.7.0 models/common/utils.py: "
           "BackendConfig.attn is te where TE is installed; the workspace is an estimate")
_BALANCED = ("router_aux_loss_coef", "the balancing loss is computed", "assumed", "0.7.0 models/qwen3_moe/model.py: "
             "aux_loss_coeff is the configuration's, above 0 by default (transformers 5.23)")
_BALANCED_OSS = ("router_aux_loss_coef", "the balancing loss is computed", "assumed", "0.7.0 models/gpt_oss/model."
                 "py: aux_loss_coeff is the configuration's, above 0 by default (transformers 5.23)")
_FLEX = (("attention", "by a compiled flex_attention, as long as flash attention", "assumed", "torch 2.13 "
          "_inductor/kernel/flex/flex_attention.py, read, not run: delta is the only tensor besides gradients"),
         ("framework_options.attn", "masks are there; the first step makes each of a byte for each pair and head",
          "derived", "0.7.0 components/attention/flex_attention.py: create_block_mask, _compile False"))
_PATCHES = ("vision tower", "cuDNN's convolution of patches needs no workspace", "assumed", "transformers 5.23 "
            "models/siglip: a convolution whose stride is its size is one product")
_RESTING = ("vision tower", "is given no images: it has neither gradients nor states of the optimizer, and is not "
            "counted as trained", "derived", "0.7.0 models/qwen3_5_moe/model.py Qwen3_5MoeModel.forward; torch 2.13 "
            "optim/adam.py _init_group: parameters whose grad is None are passed over")
_UNPREDICTED = ("model.overrides.mtp_num_layers", "no layers of multi-token prediction, which published models with "
                "experts of a latent width have and train", "assumed", "0.7.0 models/nemotron_v3/mtp.py "
                "build_mtp_config_from_hf: num_nextn_predict_layers of the configuration")
_UNPREDICTED_BY_QWEN = ("model.overrides.mtp_num_layers", "no layers of multi-token prediction, which published models "
                        "have and train (model.num_nextn_predict_layers: 0 leaves them out)", "assumed",
                        "0.7.0 models/qwen3_5/model.py _resolve_mtp_num_layers: mtp_num_hidden_layers of the "
                        "configuration")
_GATHERED = ("model.overrides.mtp_num_layers", "where units reshard, embedding, head and the module's layers are "
             "gathered once a pass", "assumed", "0.7.0 models/common/mtp/mtp.py, loss/mtp.py: each further token "
             "gathers them again")
_UNPADDED = ("training.lengths", "a further token attends without a mask: no token of a batch is padding", "assumed",
             "transformers 5.23 masking_utils.py _ignore_causal_mask_sdpa; beside padding a mask is kept, and keys and "
             "values of all heads")
_FAKE_GATE = ("framework_options.fake_balanced_gate", "the gate's weights are placed all the same", "assumed",
              "0.7.0 moe/layers.py: FakeBalancedGate has none")


def is_forced(options: dict[str, object]) -> bool:
    """True if a gate without weights sends as many tokens to each expert."""
    return options.get("fake_balanced_gate") is True


def assumptions(job: Draft, options: dict[str, object], *, has_liger: bool,
                is_read: bool) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says besides defaults, as (key, value, kind, source).

    A mesh that the parallelizer serves and the loader before it does not is shown, with that said. `has_liger`:
    transformers' layers run with Liger's kernels; `is_read`: the release was read, not run.
    """
    made = [*packed_assumptions(job), *optimizer_assumptions(job), *compile_assumptions(job)]
    made += [_INSTALLED] if has_liger else []
    made += [STAGES] if job.mesh.pp > 1 else []
    made += [_PATCHES] if job.graph.architecture.has_tower else [_RESTING] if job.graph.architecture.resting else []
    made += [_READ] if is_read else []
    made += fp8_assumptions(job)
    made += [_UNPREDICTED] if not job.graph.branches and any(
        isinstance(branch.block, Moe) and branch.block.latent for kind in job.graph.kinds
        for branch in kind.branches) else []
    made += [_GATHERED] if job.graph.branches and job.mesh.size > 1 else []
    made += [_UNPADDED] if job.graph.branches and job.graph.architecture.decoder == QWEN3_5[0] else []
    made += [*policy_assumptions(job), *time_of_offload(job)] if trains_policies(job) else []
    if job.graph.architecture.family == "qwen3_moe" and job.graph.implementation != "hf":
        made += [_LATENT, _FAKE_GATE if is_forced(options) else _BALANCED]
    elif job.graph.architecture.family == "gpt_oss" and job.graph.implementation != "hf":
        made += [*(_FLEX if runs_flex(job, options) else (_LATENT,)), _FAKE_GATE if is_forced(options) else
                 _BALANCED_OSS]
    elif job.graph.architecture.family == "qwen3_next" and job.graph.implementation != "hf":
        made += [*([] if options.get("attn") == "sdpa" else [_LATENT]), _FAKE_GATE if is_forced(options) else _BALANCED]
    elif job.graph.architecture.decoder in QWEN3_5 and job.graph.implementation != "hf":
        made += [*([] if job.graph.branches else [_UNPREDICTED_BY_QWEN]),
                 *([] if options.get("attn") == "sdpa" else [_LATENT]),
                 *([_FAKE_GATE if is_forced(options) else _BALANCED] if job.has_experts else [])]
    elif job.graph.architecture.family in SPARSE and job.graph.implementation != "hf":
        made += [_LATENT] * (options.get("attn", "te") == "te") + [_FAKE_GATE] * is_forced(options)
    made += [] if is_forced(options) else hot_ranks_assumption(job)
    if job.mesh.tp == 1:
        return tuple(made)
    if splits_layers(job):
        return (*made, *(() if trains_policies(job) else split_assumptions(job)))
    return (*made, ("mesh.tp", "as the parallelizer places it", "assumed",
             "0.7.0 NeMoAutoModel's capability check refuses it first: 'Tensor parallelism (tp_size="
             f"{job.mesh.tp}) requested but NemotronHForCausalLM has no TP plan'; only lm_head would be split"),)
