"""Arguments of Megatron become the scenarios that a person would write, and each of them is accounted for."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from recipes.looked_into import messages, value
from simcore.errors import InputError, RankscopeError
from simcore.inputs.document import Document, parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.recipes.megatron.arguments import arguments
from simcore.recipes.megatron.without_effect import left_out
from simcore.simulate import check

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
export CUBLAS_WORKSPACE_CONFIG=:4096:8
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-2}
TP=${TP:-2}
SEQ=$((1024 * 4))
LAUNCH=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES  # of the queue
    --master_addr $MASTER_ADDR
)
MODEL=(
    --use-mcore-models --num-layers 24 --hidden-size 2048 --num-attention-heads 16
    --group-query-attention --num-query-groups 4
    --ffn-hidden-size 8192
    --max-position-embeddings $SEQ --seq-length $SEQ
    --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope
    --attention-dropout 0.0 --hidden-dropout 0.0
    --untie-embeddings-and-output-weights
    --tokenizer-type NullTokenizer --vocab-size 32000
)
TRAIN="--micro-batch-size 2 --global-batch-size 128 --bf16 --lr 1e-4 \\
    --train-iters 100 --save $CHECKPOINT"
torchrun ${LAUNCH[@]} pretrain_gpt.py ${MODEL[@]} $TRAIN \\
    --tensor-model-parallel-size $TP --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \\
    --no-create-attention-mask-in-dataloader --cross-entropy-loss-fusion |& tee log
"""
WRITTEN = """\
name: run
framework: megatron
topology: dgx-h100
model:
  config: gpt2
  overrides: {n_embd: 2048, n_layer: 24, n_head: 16, n_inner: 8192, n_positions: 4096, tie_word_embeddings: false,
              attn_pdrop: 0.0, resid_pdrop: 0.0, embd_pdrop: 0.0, normalization: RMSNorm,
              position_embedding_type: rope, num_query_groups: 4, add_bias_linear: false, swiglu: true,
              vocab_size: 32256}
mesh: {tp: 2, dp_shard: 8}
training:
  seq_len: 4096
  micro_batch_size: 2
  global_batch_size: 128
  sequence_parallel: true
  loss: megatron
  precision: {compute: bf16, main_grads: fp32, grad_reduce: fp32}
  optimizer: {name: adam}
environment: {cublas_workspace_config: ":4096:8"}
framework_options: {use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}
"""
BASE: dict[str, Any] = {
    "num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "max-position-embeddings": 1024, "seq-length": 1024,
    "micro-batch-size": 4, "global-batch-size": 32, "bf16": True, "tokenizer-type": "GPT2BPETokenizer"}


def imported(folder: Path, text: str, name: str = "run.sh", gpus: int | None = None, **settings: Any) -> Imported:
    (folder / name).write_text(text, encoding="utf-8")
    return import_recipe([str(folder / name)], Answers.of_options(gpus, None, "dgx-h100", settings))


def of(folder: Path, gpus: int = 8, **changes: Any) -> Imported:
    """Imported model_config.yaml with the small GPT's arguments and others; a key's underscores are hyphens."""
    given = {f"--{key}": value for key, value in BASE.items()} | {
        key if key.startswith("--") else f"--{key.replace('_', '-')}": value for key, value in changes.items()}
    lines = [f"  {key}: {json.dumps(value)}\n" for key, value in given.items() if value is not None]
    return imported(folder, "MODEL_ARGS:\n" + "".join(lines), "model_config.yaml", gpus)


def scenario(found: Imported) -> Scenario:
    found.expect_complete()
    return parse_scenario(found.document())


def test_a_script_is_the_scenario_that_a_person_would_write(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT)
    assert scenario(found) == parse_scenario(parse_document(WRITTEN, "written.yaml"))
    assert check(scenario(found)).problems == ()


def test_arguments_alone_are_the_same_recipe(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT)
    alone = " ".join(["--tensor-model-parallel-size=2", *SCRIPT.partition("MODEL=(")[2].partition("\n)")[0].split(),
                      *SCRIPT.partition('TRAIN="')[2].partition('"')[0].split(),
                      *SCRIPT.partition("TP --seq")[2].partition("|&")[0].replace("uence", "--sequence", 1).split()])
    alone = alone.replace("$SEQ", "4096").replace("\\ ", "")
    again = imported(tmp_path, alone, "args.txt", 16)
    written = {"name": "run", "environment": {"cublas_workspace_config": ":4096:8"}}
    assert parse_scenario(Document("args.txt", {**again.values, **written})) == scenario(found)


def test_an_origin_is_the_line_of_the_argument(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT)
    origins = {".".join(map(str, path)): str(origin) for path, origin in found.origins.items()}
    assert origins["model.overrides.n_inner"].endswith("run.sh:16 --ffn-hidden-size")
    assert origins["training.micro_batch_size"].endswith("run.sh:23 --micro-batch-size")
    assert "16 GPUs" in origins["mesh.dp_shard"]
    assert "torchrun" in origins["mesh.dp_shard"]
    assert origins["training.optimizer.name"].startswith("default of Megatron-LM")


@pytest.mark.parametrize(("row", "gpus", "changes"), [
    ("gpt/gpt3_mcore_te_tp2_pp2/dev_dgx_a100", 8, {
        "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "deterministic_mode": True,
        "no_gradient_accumulation_fusion": True, "attention_backend": "unfused", "log_num_zeros_in_grad": True}),
    ("gpt/gpt3_mcore_te_tp4_pp1_qk_layernorm_test_mode/dev_dgx_a100", 8, {
        "tensor_model_parallel_size": 4, "qk_layernorm": True, "deterministic_mode": True,
        "no_gradient_accumulation_fusion": True, "attention_backend": "unfused", "log_num_zeros_in_grad": True}),
    ("moe/gpt3_mcore_tp2_pp2_ep2_te_4experts2parallel/dev_dgx_a100", 8, {
        "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "sequence_parallel": True,
        "num_experts": 4, "expert_model_parallel_size": 2, "moe_router_topk": 1, "disable_bias_linear": True,
        "deterministic_mode": True, "no_gradient_accumulation_fusion": True, "transformer_impl": "local",
        "attention_backend": "unfused", "no_bias_gelu_fusion": True, "log_num_zeros_in_grad": True}),
])
def test_a_case_of_megatrons_tests_is_its_row_of_measured_runs(tmp_path: Path, row: str, gpus: int,
                                                               changes: dict[str, Any]) -> None:
    files = (ROOT / "tests" / "truth" / "measured").glob("mcore-golden-*.jsonl")
    rows = {one["id"]: one for file in files for one in map(json.loads, file.read_text("utf-8").splitlines())}
    stored = {**rows[f"mlm:{row}"]["scenario"], "name": "x"}
    found = {**of(tmp_path, gpus, **changes).values, "name": "x", "environment": stored.get("environment", {})}
    version = {key: stored[key] for key in ("framework_version", "topology") if key in stored}
    assert parse_scenario(Document("a", {**found, **version})) == parse_scenario(Document("b", stored))


# ---- traps ----------------------------------------------------------------------------------------------------------
EXPERTS = {"num_experts": 8, "disable_bias_linear": True, "tensor_model_parallel_size": 2, "sequence_parallel": True}


LATENT: dict[str, Any] = {
    "multi_latent_attention": True, "qk_layernorm": True, "normalization": "RMSNorm", "swiglu": True, "num_experts": 8,
    "disable_bias_linear": True, "position_embedding_type": "rope", "moe_ffn_hidden_size": 64,
    "moe_shared_expert_intermediate_size": 64, "kv_lora_rank": 64, "qk_head_dim": 32, "qk_pos_emb_head_dim": 16,
    "v_head_dim": 32}
QWEN = {"qk_layernorm": True, "swiglu": True, "disable_bias_linear": True, "normalization": "RMSNorm",
        "kv_channels": 128, "position_embedding_type": "rope", "attention_dropout": 0.0, "hidden_dropout": 0.0}


PRECISE: dict[str, Any] = {
    "use_precision_aware_optimizer": True, "use_distributed_optimizer": True, "main_grads_dtype": "bf16"}
STEPWISE: dict[str, Any] = {"step_batch_size_schedule": "204800:32 0:16,409.6K:1K", "global_batch_size": None}
"""From 200 and 400 samples on; batches of 32 begin at the 208th, and the first of 1,000 at the 400th."""


@pytest.mark.parametrize(("changes", "key", "expected"), [
    (EXPERTS, "mesh.etp", 2),
    ({**EXPERTS, "expert_tensor_parallel_size": 1}, "mesh.etp", 1),
    (EXPERTS, "framework_options.moe_token_dispatcher_type", "allgather"),
    (EXPERTS, "framework_options.moe_grouped_gemm", False),
    ({"sequence_parallel": True}, "training.sequence_parallel", False),
    ({"num_query_groups": 2}, "model.overrides.num_query_groups", None),
    ({"group_query_attention": True}, "model.overrides.num_query_groups", 1),
    ({"swiglu": True, "disable_bias_linear": True, "hidden_size": 1024}, "model.overrides.n_inner", 2688),
    ({"tensor_model_parallel_size": 2}, "model.overrides.vocab_size", 50432),
    ({"make_vocab_size_divisible_by": 1}, "model.overrides.vocab_size", 50257),
    ({"no_pad_vocab_size": True}, "model.overrides.vocab_size", 50257),
    ({"padded_vocab_size": 60000}, "model.overrides.vocab_size", 60000),
    ({"tokenizer_type": "NullTokenizer", "vocab_size": 128}, "model.overrides.vocab_size", 256),
    ({"tokenizer_type": "NullTokenizer", "vocab_size": 128, "mtp_use_repeated_layer": True},
     "model.overrides.vocab_size", 128),
    ({"bf16": None, "fp16": True}, "training.precision.main_grads", "fp16"),
    ({"grad_reduce_in_bf16": True}, "training.precision.grad_reduce", "bf16"),
    (PRECISE, "training.precision.grad_reduce", "bf16"),
    ({"fp8_format": "hybrid"}, "framework_options.fp8_recipe", "delayed"),
    ({"num_distributed_optimizer_instances": 2, "use_distributed_optimizer": True}, "mesh", {
        "dp_replicate": 2, "dp_shard": 4}),
    ({"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 2},
     "training.pipeline.virtual_stages", 3),
    ({"recompute_activations": True}, "training.recompute", ["core_attn"]),
    ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
     "training.recompute", "full"),
    ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3},
     "training.recompute", {"mode": "block", "num_layers": 3}),
    ({"recompute_granularity": "selective", "recompute_modules": "[mlp layernorm]"}, "training.recompute",
     ["mlp", "layernorm"]),
    ({"optimizer": "muon", "use_distributed_optimizer": True}, "training.optimizer.name", "dist_muon"),
    ({"step_batch_size_schedule": "0:16 1B:64", "global_batch_size": None}, "training.global_batch_size", 64),
    ({**STEPWISE, "train_samples": 199}, "training.global_batch_size", 16),
    ({**STEPWISE, "train_samples": 208}, "training.global_batch_size", 16),
    ({**STEPWISE, "train_samples": 209}, "training.global_batch_size", 32),
    ({**STEPWISE, "train_samples": 401}, "training.global_batch_size", 1000),
    ({**STEPWISE, "train_iters": 13}, "training.global_batch_size", 16),
    ({**STEPWISE, "train_iters": 14}, "training.global_batch_size", 32),
    ({**STEPWISE, "train_iters": 19}, "training.global_batch_size", 32),
    ({**STEPWISE, "train_iters": 20}, "training.global_batch_size", 1000),
    ({"use_rotary_position_embeddings": True, "no_rope_fusion": True}, "framework_options.apply_rope_fusion", False),
    ({"cuda_graph_modules": ["attn mlp"], "cuda_graph_impl": "transformer_engine"},
     "framework_options.cuda_graph_scope", ["attn", "mlp"]),
    ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim"},
     "framework_options.data_parallel_sharding_strategy", "optim"),
    ({"use_megatron_fsdp": True}, "framework", "megatron_fsdp"),
    ({"use_megatron_fsdp": True, "ddp_num_buckets": 3}, "framework_options.num_buckets", 3),
    ({"use_megatron_fsdp": True, "ddp_bucket_size": 9}, "framework_options.bucket_size", 9),
    ({"overlap_grad_reduce": True, "ddp_num_buckets": 3}, "framework_options.num_buckets", 3),
    ({"ddp_num_buckets": 3}, "framework_options.num_buckets", None),
    ({"use_nccl_ub": True}, "framework_options.nccl_ub", True),
    (QWEN, "model.config", "qwen3-8b"),
    (LATENT, "model.config", "gpt2"),
    ({**LATENT, "moe_router_pre_softmax": True}, "model.config", "deepseek-v2"),
    ({**LATENT, "moe_router_score_function": "sigmoid"}, "model.config", "deepseek-v3"),
    ({**LATENT, "moe_router_pre_softmax": True, "qk_layernorm": False}, "model.config", "gpt2"),
    (QWEN, "framework_options.bias_activation_fusion", True),
    ({**QWEN, "no_bias_swiglu_fusion": True}, "framework_options.bias_activation_fusion", None),
    ({"swiglu": True}, "framework_options.bias_activation_fusion", None),
    ({"swiglu": True}, "model.overrides.swiglu", True),
    ({"qk_layernorm": True}, "model.overrides.qk_layernorm", True),
    ({**QWEN, "kv_channels": None, "position_embedding_type": "learned_absolute"}, "model.config", "gpt2"),
    ({"hybrid_layer_pattern": "M-M*|M-ME", "num_experts": 4, "pipeline_model_parallel_size": 2},
     "training.pipeline.layers", [4, 4]),
    ({"hybrid_layer_pattern": "M-M*/*E/*E", "num_experts": 4}, "model.overrides.mtp_num_layers", 2),
    ({"hybrid_layer_pattern": "M-M*E", "num_experts": 4, "moe_latent_size": 64}, "model.config",
     "nemotron-3-super-120b-a12b"),
])
def test_a_trap_is_read_as_megatron_means_it(tmp_path: Path, changes: dict[str, Any], key: str, expected: Any) -> None:
    found = of(tmp_path, **changes)
    assert value(found, key) == expected, messages(found)


@pytest.mark.parametrize(("changes", "told"), [
    ({"tokenizer_type": "HuggingFaceTokenizer"}, "--set model.overrides.vocab_size="),
    ({"seq_length": None}, "--seq-len N"),
    ({"moe_layer_freq": "[1]*3+[0]*9", "num_experts": 4}, "dense layers behind the first one with experts"),
    ({"experimental_attention_variant": "dsa"}, "linear or sparse attention"),
    ({"decoder_num_layers": 4}, "encoder and decoder"),
    ({"vocab_file": "vocab.txt", "tokenizer_type": None}, "word pieces"),
    ({"step_batch_size_schedule": "0:16 1B"}, "cannot specify both --step-batch-size-schedule and"),
    ({**PRECISE, "accumulate_allreduce_grads_in_fp32": True}, "--main-grads-dtype can only be fp32 when --accumulate"),
    ({"main_grads_dtype": "bf16"}, "main_grads_dtype can only be fp32 when not using precision-aware optimizer"),
    ({**STEPWISE, "step_batch_size_schedule": "0:16 1B"}, "expected pairs such as 0:768 250B:1536, got '1B'"),
    ({**STEPWISE, "step_batch_size_schedule": "1M:16 1B:32"}, "the first threshold must be 0"),
    ({**STEPWISE, "step_batch_size_schedule": "0:16 10:32"}, "thresholds must grow by a sample at least"),
    ({**STEPWISE, "step_batch_size_schedule": "0:0"}, "a batch must be positive"),
    ({**STEPWISE, "step_batch_size_schedule": "0:${BATCH}"}, "its value depends on 0:${BATCH}"),
    ({"perform_rl_step": True}, "reinforcement learning"),
    ({"window_size": "(128,0)"}, "windows of attention"),
    ({"num_layers": None}, "--num-layers: missing"),
    ({"num_layers": None, "tokenizer_type": "HuggingFaceTokenizer"}, "--num-layers: missing"),
    ({"lr_x": 1}, "unknown key 'MODEL_ARGS.--lr-x'"),
    ({"tensor_model_parallel_size": 3}, "no multiple of pp 1 x cp 1 x tp 3"),
    ({"micro_batch_size": "${MBS}"}, "its value depends on ${MBS}"),
    ({"hidden_size": "much"}, "expected a whole number"),
    ({"optimizer": "lion"}, "an optimizer that is not modelled"),
    ({"hybrid_layer_pattern": "MG*"}, "layers G of the pattern"),
    ({"hybrid_layer_pattern": "M-M*", "num_experts": 4}, "experts of a hybrid whose pattern has no layer with them"),
    ({"recompute_granularity": "full"}, "recompute_method must be block or uniform"),
    ({"recompute_granularity": "full", "recompute_method": "block"}, "recompute_num_layers must be at least 1"),
    ({"num_layers": 4, "encoder_num_layers": 4}, "cannot have both num-layers and encoder-num-layers"),
    ({"recompute_granularity": "selective", "recompute_num_layers": 1}, "recompute_num_layers must not be given"),
    ({"recompute_granularity": "selective", "recompute_method": "uniform"}, "recompute_method must not be given"),
])
def test_what_cannot_be_said_is_named(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    assert told in messages(of(tmp_path, **changes))


def test_the_step_of_a_schedule_that_a_run_reaches_is_said(tmp_path: Path) -> None:
    found = of(tmp_path, **STEPWISE, train_samples=300)
    assert found.origins["training", "global_batch_size"].text == (
        "the batch of the run's last step: 272 samples (278,528 tokens) before it, of the 409,600 tokens from which "
        "batches are 1,000")
    assert [one.keys for one in found.decides if one.key.endswith("--train-samples")] == [
        ("training.global_batch_size",)]
    whole = of(tmp_path, **STEPWISE, train_samples=401).origins["training", "global_batch_size"].text
    assert whole == "the batch of the run's last step: 400 samples (409,600 tokens) before it"
    assert "does not say how long" in of(tmp_path, **STEPWISE).origins["training", "global_batch_size"].text


def test_the_format_of_gradients_comes_from_what_decides_it(tmp_path: Path) -> None:
    """Megatron-LM main training/arguments.py:1209-1217."""
    found = of(tmp_path, **PRECISE)
    for key in ("main_grads", "grad_reduce"):
        assert str(found.origins["training", "precision", key]).endswith("MODEL_ARGS.--main-grads-dtype")
    found = of(tmp_path, **PRECISE, grad_reduce_in_bf16=True)
    assert str(found.origins["training", "precision", "main_grads"]).endswith("MODEL_ARGS.--grad-reduce-in-bf16")


def test_variables_of_slurm_are_those_of_the_job(tmp_path: Path) -> None:
    text = SCRIPT.replace("GPUS_PER_NODE=8", "GPUS_PER_NODE=$((SLURM_NNODES * 4))").replace(":-2}", ":-1}")
    assert messages(imported(tmp_path, text)) == messages(imported(tmp_path, SCRIPT))
    named = text.replace("--nodes=2", "--nodes=NODES")
    assert "SLURM_NNODES" in messages(imported(tmp_path, named.replace("TP=${TP:-1}", "TP=$SLURM_NNODES")))


def test_variables_of_attention_are_those_of_the_backend(tmp_path: Path) -> None:
    """Core 0.16.1, language_module.py, _set_attention_backend."""
    text = SCRIPT.replace("#SBATCH --nodes=2", "#SBATCH --nodes=2\nexport NVTE_FUSED_ATTN=0 NCCL_IB_SL=1")
    found = imported(tmp_path, text)
    assert "run.sh:3: NVTE_FUSED_ATTN is 0, and --attention-backend auto does not start" in messages(found)
    assert [one.where.rpartition("/")[2] for one in found.left if one.key == "NCCL_IB_SL"] == ["run.sh:3"]
    assert "NVTE" not in messages(imported(tmp_path, text.replace("--lr 1e-4", "--lr 1e-4 --attention-backend flash")))


@pytest.mark.parametrize(("text", "told"), [
    (SCRIPT.replace("TP=${TP:-2}", ""), "--tensor-model-parallel-size: its value depends on $TP, which the script"),
    (SCRIPT.replace("$NNODES ", "$1 ").replace("#SBATCH --nodes=2", ""), "number of GPUs; answer with --gpus N"),
    (SCRIPT.replace("--lr 1e-4", "--lr"), "--lr: expected a value"),
    (SCRIPT.replace("--lr 1e-4", "--lr 1e-4 stray"), "unrecognized argument 'stray'"),
    (SCRIPT.replace("|& tee", "$(cat args.txt) |& tee"), "run.sh:28: $(cat args.txt) may hold arguments: the output"),
    (SCRIPT.replace("GPUS_PER_NODE=8", "GPUS_PER_NODE=8; . a.sh").replace("|& tee", "$MORE |& tee"),
     "run.sh:28: $MORE may hold arguments: $MORE, which the file that is sourced at line 4 may set"),
    (SCRIPT.replace("--lr 1e-4", "--data-path 1 x $(cat args.txt)"), "$(cat args.txt) may hold arguments"),
])
def test_what_a_script_leaves_open_is_named(tmp_path: Path, text: str, told: str) -> None:
    assert told in messages(imported(tmp_path, text))


@pytest.mark.parametrize(("lines", "line"), [
    ("$@", "go --tensor-model-parallel-size 4"), ("$1 $2", "go --tensor-model-parallel-size=4"),
    ("\"$@\"", "go --tensor-model-parallel-size 4"), ("$MORE", "MORE='--tensor-model-parallel-size 4'; go")])
def test_arguments_of_a_function_are_those_of_its_call(tmp_path: Path, lines: str, line: str) -> None:
    inside = SCRIPT.replace("torchrun", "go() { torchrun").replace("|& tee log", f"{lines} |& tee log\n}}\n{line}")
    assert value(imported(tmp_path, inside), "mesh.tp") == 4


@pytest.mark.parametrize(("text", "told"), [
    (SCRIPT.replace("torchrun ", "for i in 1 2; do torchrun ") + "done\n", "lies in the loop at line 25"),
    (SCRIPT.replace("pretrain_gpt.py", "pretrain_bert.py"), "pretrain_bert.py: no training of a GPT"),
    (SCRIPT + SCRIPT[SCRIPT.index("torchrun"):].replace("$TP", "4"), "2 commands with Megatron's arguments"),
    (SCRIPT + "$(rm -rf /", "a ( that is never closed"),
])
def test_a_script_that_is_not_one_command_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(RankscopeError, match=told.replace("(", r"\(")):
        imported(tmp_path, text)


def test_every_argument_of_megatron_is_accounted_for(tmp_path: Path) -> None:
    """Each by itself beside a small GPT: it is used, listed with a reason, refused, or an argument of other scripts."""
    words: dict[str, Any] = {"int": 1, "float": 0.5, "text": "other", "int+": [1], "float+": [0.5], "text+": ["other"]}
    listed = [pattern for row in left_out({}) for pattern in row.keys]
    silent = []
    for name, one in arguments().items():
        if any(fnmatchcase(name, pattern) for pattern in listed):
            continue
        found = of(tmp_path, **{name: True if one.is_switch else words[one.takes]})
        key = f"MODEL_ARGS.{name}"
        told = [*found.used, *(left.key for left in found.left)]
        if told.count(key) != 1 and key not in messages(found):
            silent.append(name)
    assert silent == []


FSDP: dict[str, Any] = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}


@pytest.mark.parametrize(("changes", "told"), [
    ({"megatron_fsdp_main_params_dtype": "bf16"}, "masters in another format"),
    ({"megatron_fsdp_version": 2}, "second implementation"),
    ({"megatron_fsdp_max_pool_double_buffer": True}, "buffers of the largest size")])
def test_what_of_megatron_fsdps_buffers_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    """It has no effect without Megatron-FSDP."""
    assert told in messages(of(tmp_path, **FSDP, **changes))
    assert told not in messages(of(tmp_path, **changes))


def test_megatron_fsdp_has_a_format_of_gradients_of_its_own(tmp_path: Path) -> None:
    """Left to it, main's is that of parameters; the release reads what DistributedDataParallel reads, fp32 here."""
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"megatron_fsdp_main_grads_dtype": "fp32", "megatron_fsdp_grad_comm_dtype": "bf16"}, "fp32", "bf16"),
        ({"megatron_fsdp_main_grads_dtype": "fp32"}, "fp32", "fp32"),
        ({"megatron_fsdp_grad_comm_dtype": "fp32"}, "bf16", "fp32"),
        ({"megatron_fsdp_main_params_dtype": "fp32"}, "bf16", "bf16"), ({}, "fp32", "fp32"))
    for kept, grads, sent in cases:
        found = of(tmp_path, **FSDP, **kept)
        precision = value(found, "training.precision")
        assert (precision["main_grads"], precision["grad_reduce"]) == (grads, sent), messages(found)


@pytest.mark.parametrize("name", ["tools/preprocess_data.py", "tools/checkpoint/util.py", "tokenize_corpus.py"])
def test_scripts_that_prepare_data_or_convert_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"not yet: {name}: no training"):
        imported(tmp_path, SCRIPT.replace("pretrain_gpt.py", name))
    assert "no training" not in messages(imported(tmp_path, SCRIPT.replace("pretrain", "export/pretrain")))


def test_a_capacity_of_experts_needs_a_balancing_that_takes_it(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 core/transformer/transformer_config.py:1836 raises for the others."""
    experts: dict[str, Any] = {"num-experts": 8, "moe-grouped-gemm": True, "moe-router-topk": 2,
                               "moe-expert-capacity-factor": 1.5}
    for balancing, is_wrong in (("sinkhorn", True), ("aux_loss", False), ("none", False), (None, False)):
        found = of(tmp_path, **(experts | {"moe-router-load-balancing-type": balancing}))
        told = [problem.message for problem in found.wrong if "global_aux_loss or none" in problem.message]
        assert bool(told) is is_wrong, (balancing, found.wrong)
    pads = "moe-pad-expert-input-to-capacity"
    assert value(of(tmp_path, **experts), "training.routing") == {"capacity_factor": 1.5, "pad": False}
    assert value(of(tmp_path, **experts, **{pads: True}), "training.routing") == {"capacity_factor": 1.5}


def test_modules_on_the_host_are_those_of_main(tmp_path: Path) -> None:
    """Core 0.16.1 has the option too, by other code, which is not simulated."""
    found = of(tmp_path, **{"fine-grained-activation-offloading": True, "offload-modules": ["core_attn"]})  # type: ignore[arg-type]
    assert found.values["framework_version"] == "main 2026-08-22"
    assert "by other code" in str(found.origins[("framework_version",)])


def test_relu_squared_is_a_gpts_without_biases_and_a_gate(tmp_path: Path) -> None:
    script = SCRIPT.replace("--swiglu --disable-bias-linear --normalization RMSNorm", "--squared-relu {}")
    for words, activation in (("--disable-bias-linear", "relu2"), ("", None), ("--disable-bias-linear --swiglu", None)):
        file = tmp_path / "run.sh"
        file.write_text(script.replace("{}", words), encoding="utf-8")
        found = import_recipe([str(file)], Answers.of_options(None, None, "dgx-h100"))
        assert found.values["model"]["overrides"].get("activation_function") == activation, words
        assert any("squared ReLU" in one.message for one in found.refused) == (activation is None), words
        if activation:
            assert check(parse_scenario(found.document())).status == "ok"


def test_gated_delta_nets_are_a_gpts_and_no_other_variant_is(tmp_path: Path) -> None:
    words = ("--attention-output-gate --linear-attention-freq {} --linear-num-key-heads 4 --linear-num-value-heads 8 "
             "--linear-key-head-dim 64 --linear-value-head-dim 64 --experimental-attention-variant {}")
    for every, variant, told in (("3", "gated_delta_net", ""), ("[1,0]*12", "gated_delta_net", "listed one by one"),
                                 ("3", "dsa", "linear or sparse attention")):
        file = tmp_path / "run.sh"
        file.write_text(SCRIPT.replace("--swiglu", f"--swiglu {words.format(every, variant)}"), encoding="utf-8")
        found = import_recipe([str(file)], Answers.of_options(None, None, "dgx-h100"))
        assert told in "; ".join(one.message for one in found.refused), variant
        overrides = found.values["model"]["overrides"]
        assert overrides["attention_output_gate"] is True
        assert ("linear_attention_freq" in overrides) == (not told), variant
        if not told:
            assert not found.refused
            assert overrides["linear_conv_kernel_dim"] == 4
            assert check(parse_scenario(found.document())).status == "ok"
    other = f"--swiglu --qk-layernorm --kv-channels 64 {words.format('3', 'dsa')}"
    file.write_text(SCRIPT.replace("--swiglu", other), encoding="utf-8")
    found = import_recipe([str(file)], Answers.of_options(None, None, "dgx-h100"))
    assert {"linear or sparse attention", "a gate of the attention's output"} <= {
        one.message.rpartition(": ")[2] for one in found.refused}
