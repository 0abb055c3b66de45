"""Fields of Bridge's classes that no recipe sets are read, or refused by name; none is called unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import messages
from simcore.recipes.bridge.rows import defaults

DENSE = "llama3_8b_pretrain_8gpu_h100_bf16_config"
EXPERTS = "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"
TIED = "qwen3_600m_pretrain_1gpu_h100_bf16_config"


@pytest.mark.parametrize(("override", "told"), [
    ("model.gated_linear_unit=false", "not yet: model.gated_linear_unit: another one than"),
    ("model.gated_linear_unit=true", "no effect: the model's own"),
    ("model.qk_layernorm=true", "not yet: model.qk_layernorm: another one than"),
    ("model.normalization=LayerNorm", "not yet: model.normalization: another one than"),
    ("model.normalization=RMSNorm", "no effect: the model's own"),
    ("model.share_embeddings_and_output_weights=true", "another one than"),
    ("model.fp32_residual_connection=true", "not yet: model.fp32_residual_connection: residuals in fp32"),
    ("model.use_te_activation_func=true", "TransformerEngine's own activation"),
    ("model.logit_dtype=float32", "not yet: model.logit_dtype: logits in another format"),
    ("model.fused_single_qkv_rope=true", "not modelled: query, key and value are rotated"),
    ("model.dsa_indexer_topk=4", "no effect: of an indexer of keys"),
    ("model.parallel_output=true", "no effect: the default, as without it"),
    ("model.parallel_output=false", "not yet: model.parallel_output: a field"),
    ("model.memory_efficient_layer_norm=true", "a field of Bridge's model that no scenario says"),
    ("ddp.pad_buckets_for_high_nccl_busbw=true", "buckets or reduction of gradients in this way"),
    ("ddp.pad_buckets_for_high_nccl_busbw=false", "no effect: the default, as without it"),
    ("ddp.fp8_param_gather=true", "no effect: mixed_precision says it"),
    ("optimizer.optimizer_cuda_graph=true", "the optimizer's step in a CUDA graph"),
    ("optimizer.loss_scale=1.0", "no effect: mixed_precision says it"),
    ("train.rampup_batch_size=[8,8,1000]", "no effect: main only warns of it"),
    ("train.decrease_batch_size_if_needed=true", "no effect: off, or the batch is a multiple"),
    ("train.step_batch_size_schedule=0:8", "batches by a schedule"),
    ("model.no_such_field=1", "unknown key 'model.no_such_field'")])
def test_a_field_of_bridges_classes_is_read_or_refused_by_name(tmp_path: Path, override: str, told: str) -> None:
    found = imported(tmp_path, f"{DENSE} {override}")
    key = override.partition("=")[0]
    left = [f"{one.kind}: {one.why}" for one in found.left if one.key == key]
    assert told in messages(found) + "".join(left)


def test_a_head_of_its_own_is_not_what_a_tied_model_has(tmp_path: Path) -> None:
    assert "another one than" in messages(imported(tmp_path, f"{TIED} model.share_embeddings_and_output_weights=false"))


def test_no_field_of_bridges_classes_is_unknown(tmp_path: Path) -> None:
    """One launch with each field that has a true or false default, the other way round."""
    switches = [(key, not value[0]) for key, value in defaults().items() if value and isinstance(value[0], bool)]
    words = " ".join(f"{key}={str(value).lower()}" for key, value in switches)
    made = " ".join(f"{block}._target_=some.Class" for block in ("comm_overlap", "peft", "profiling"))
    found = imported(tmp_path, f"{EXPERTS} {made} {words}")
    assert len(switches) > 150
    assert [str(one) for one in found.unknown if "._target_" not in str(one)] == []
