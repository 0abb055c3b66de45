"""Arguments of Megatron-LM in the YAML files of its functional tests: what may stand there, and what changes nothing.

Names are Megatron's (d98e8a64 `megatron/training/arguments.py`), as the files have them. One collection restates most
of them in fields of its own (`config`); `measured_golden.py` reads those, and the arguments that it leaves out.
"""

from __future__ import annotations

from measured_bridge import CAPTURED
from source_row import Always, Missing, Number, Prose, Refused, Unheard, Unread, Words, named

ON = Always(True)
FORMATS = Always("hybrid", "e4m3")


class Scope:
    """What graphs capture: a word, or a list of words in brackets."""

    def meaning(self, told):
        found = told.strip("[]").split()
        if not found or set(found) - set(CAPTURED):
            raise Unheard(f"known: lists of {', '.join(CAPTURED)}")
        return found


class Levels:
    """Sizes of groups within groups: two numbers, as "2 2" or "[2 2]"."""

    def meaning(self, told):
        found = str(told).strip("[]").split()
        if len(found) != 2 or not all(size.isdigit() for size in found):
            raise Unheard("known: two numbers")
        return [int(size) for size in found]


IDLE = named(Unread, {
    "random numbers, initial weights": "seed init-method-std te-rng-tracker",
    "values of the optimizer's step":
        "lr min-lr lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction lr-warmup-samples lr-warmup-iters "
        "lr-warmup-init lr-wsd-decay-style lr-wsd-decay-samples lr-mult-router decoupled-lr decoupled-min-lr "
        "weight-decay adam-beta1 adam-beta2 adam-eps clip-grad muon-momentum muon-extra-scale-factor muon-scale-mode "
        "override-opt-param-scheduler override-opt_param-scheduler use-checkpoint-opt-param-scheduler "
        "use-checkpoint-opt_param-scheduler step-batch-size-schedule rampup-batch-size",
    "length of the run, evaluation, pauses":
        "train-iters train-samples exit-interval exit-duration-in-mins eval-interval eval-iters eval-global-batch-size "
        "manual-gc manual-gc-interval check-weight-hash-across-dp-replicas-interval no-check-for-nan-in-loss-and-grad",
    "reading and writing of files":
        "ckpt-format async-strategy async-ckpt-use-cpu-shm auto-detect-ckpt-format ckpt-assume-constant-structure "
        "dist-ckpt-strictness dist-ckpt-optim-fully-reshardable use-persistent-ckpt-worker use-checkpoint-args "
        "finetune verify-integrity save-retain-interval no-ckpt-fully-parallel-save export-te-mcore-model "
        "export-default-te-spec export-model-type language-model-checkpoint",
    "which samples are read, on the host":
        "split num-workers no-mmap-bin-files mock-data dataset-provider dataloader-type total-seq-length "
        "packing-buffer-size tokenizer-type-of-samples legacy-tokenizer tiktoken-pattern vocab-extra-ids",
    "logging": "logging-level timing-log-option straggler-minmax-count log-energy log-memory-interval "
               "inference-logging-step-interval max-tokens-to-oom",
    "how processes are started and grouped; the ranks of a group do the same":
        "distributed-backend distributed-timeout-minutes use-tp-pp-dp-mapping disable-gloo-process-groups "
        "high-priority-stream-groups ddp-average-in-collective",
    "values by which something is scaled":
        "norm-epsilon rotary-base rotary-scaling-factor mscale mscale-all-dim mtp-loss-scaling-factor "
        "moe-aux-loss-coeff moe-z-loss-coeff moe-router-topk-scaling-factor moe-router-bias-update-rate "
        "apply-query-key-layer-scaling",
    "the only kind of model that these versions have, or how it is put together": "use-mcore-models is-hybrid-model",
    "small beside everything else: a few values a token, a fused kernel or none":
        "moe-router-pre-softmax moe-router-enable-expert-bias moe-router-load-balancing-type moe-router-fusion "
        "no-rope-fusion rotary-percent apply-layernorm-1p no-persist-layer-norm moe-hybridep-num-sms",
    "attention's scores are in fp32 where a softmax of its own has them, in whatever case": "attention-softmax-in-fp32",
    "flash attention, which the backend says again": "use-flash-attn",
    "the loss of a token, divided at another moment": "calculate-per-token-loss",
    "parameters of each layer are gathered one by one anyway": "use-rotary-position-embeddings",
})
"""Arguments on which nothing depends that is simulated, with the reason."""
OTHER_MODELS = named(Unread, {
    "of models that have no family here": "encoder-num-layers decoder-num-layers encoder-seq-length decoder-seq-length "
    "img-h img-w patch-dim disable-vision-class-token use-packed-sequence model-provider "
    "accumulate-allreduce-grads-in-fp32"})
REFUSED = named(Refused, {
    "a reinforcement-learning step: rollouts and offload between phases are not stated":
        "perform-rl-step rl-use-sequence-packing rl-sequence-packing-algo rl-partial-rollouts rl-training-cuda-graphs "
        "rl-inference-tensor-model-parallel-size rl-inference-expert-model-parallel-size "
        "rl-inference-expert-tensor-model-parallel-size rl-num-parallel-generations "
        "rl-inference-model-unified-memory-level grpo-group-size grpo-iterations grpo-clamp-eps-lower "
        "grpo-clamp-eps-upper grpo-kl-beta grpo-entropy-term-weight inference-dynamic-batching-num-cuda-graphs "
        "inference-dynamic-batching-unified-memory-level inference-dynamic-batching-buffer-size-gb "
        "inference-max-seq-length moe-pad-experts-for-cuda-graph-inference empty-unused-memory-level",
    "Flextron: several widths of one model in a step":
        "flextron enable-router binary-mask soft-mask hard-sample-th router-beta original-model-sample-prob tau-init "
        "tau-decay loss-alpha router-gbs router-inter-dim budget-list budget-probs budget-type emb-int-list "
        "mlp-int-list mamba-int-list moe-expert-int-list linear-scaler-start linear-scaler-end slice router-std",
    "a number of gradient buckets": "ddp-num-buckets",
    "shared experts beside the dispatch": "moe-shared-expert-overlap",
    "gradient buffers in which mxfp8 parameters are gathered": "reuse-grad-buf-for-mxfp8-param-ag",
    "experts padded for quantised products": "moe-router-padding-for-quantization",
    "a dispatcher's library in a case that was not known": "moe-flex-dispatcher-backend"})
"""Arguments with which no scenario is written, with the reason."""

SIZES = {name: Number() for name in (
    "num-layers", "hidden-size", "num-attention-heads", "num-query-groups", "kv-channels", "ffn-hidden-size",
    "seq-length", "max-position-embeddings", "vocab-size", "make-vocab-size-divisible-by", "micro-batch-size",
    "global-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
    "expert-model-parallel-size", "expert-tensor-parallel-size", "num-distributed-optimizer-instances",
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "q-lora-rank", "kv-lora-rank",
    "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim", "num-experts", "moe-router-topk", "moe-ffn-hidden-size",
    "moe-shared-expert-intermediate-size", "moe-latent-size", "mtp-num-layers", "mamba-num-heads", "mamba-head-dim",
    "mamba-state-dim", "mamba-num-groups", "attention-dropout", "hidden-dropout", "cuda-graph-warmup-steps",
    "wgrad-deferral-limit", "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16", "moe-router-num-groups",
    "moe-router-group-topk")}
SWITCHES = dict.fromkeys((
    "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather", "ddp-pad-buckets-for-high-nccl-busbw",
    "untie-embeddings-and-output-weights", "squared-relu", "swiglu", "qk-layernorm", "deterministic-mode",
    "multi-latent-attention", "tp-comm-overlap", "overlap-moe-expert-parallel-comm", "delay-wgrad-compute",
    "use-transformer-engine-op-fuser", "defer-embedding-wgrad-compute", "group-query-attention", "sequence-parallel",
    "disable-bias-linear", "no-masked-softmax-fusion", "no-gradient-accumulation-fusion", "no-bias-gelu-fusion",
    "cross-entropy-loss-fusion", "fp8-param-gather", "first-last-layers-bf16", "bf16", "fp16", "use-megatron-fsdp",
    "moe-grouped-gemm", "moe-permute-fusion", "use-fused-weighted-squared-relu", "mtp-use-repeated-layer",
    "grad-reduce-in-bf16", "no-create-attention-mask-in-dataloader", "no-use-layer-wise-param-layout"), ON)
WORDS = {
    "transformer-impl": Always("transformer_engine", "local"), "optimizer": Always("adam", "muon"),
    "normalization": Always("LayerNorm", "RMSNorm"), "attention-backend": Always(
        "auto", "flash", "fused", "unfused", "local"), "position-embedding-type": Always(
        "learned_absolute", "rope", "none"), "recompute-granularity": Always("selective"),
    "recompute-modules": Always("[moe_act]", "[layernorm mla_up_proj mlp moe_act]"),
    "cross-entropy-fusion-impl": Always("native", "te"), "fp8-format": FORMATS,
    "fp8-recipe": Always("tensorwise", "blockwise", "mxfp8"), "cp-comm-type": Words(
        {one: one for one in ("p2p", "a2a", "all_gather", "a2a+p2p")}), "hierarchical-context-parallel-sizes": Levels(),
    "moe-router-dtype": Words(
        {"fp32": "fp32", "fp64": "fp64"}),
    "moe-token-dispatcher-type": Always("allgather", "alltoall", "flex"), "moe-router-score-function": Always(
        "softmax", "sigmoid"), "cuda-graph-impl": Always("transformer_engine", "local"),
    "cuda-graph-scope": Scope(), "cuda-graph-modules": Scope(),
    "data-parallel-sharding-strategy": Words({"optim_grads_params": "optim_grads_params"}),
    "outer-dp-sharding-strategy": Words({"no_shard": "no_shard"}), "tokenizer-type": Words({
        "GPT2BPETokenizer": 50257, "NullTokenizer": None, "GPTSentencePieceTokenizer": 256000, **dict.fromkeys((
            "Llama2Tokenizer", "HuggingFaceTokenizer", "TikTokenizer", "BertWordPieceCase", "${TOKENIZER_TYPE}"),
            Missing("vocabulary size unknown from the case files"))}),
    **dict.fromkeys(("main-params-dtype", "main-grads-dtype", "exp-avg-dtype", "exp-avg-sq-dtype",
                     "megatron-fsdp-main-params-dtype", "megatron-fsdp-main-grads-dtype",
                     "megatron-fsdp-grad-comm-dtype"), Always("fp32")),
    "spec": Always("local", "[megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec]",
                   "[megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec]"),
    "tp-comm-overlap-cfg": Prose(), "pipeline-model-parallel-layout": Prose(), "hybrid-layer-pattern": Prose(),
    "hybrid-override-pattern": Prose(), "moe-layer-freq": Prose()}
ARGUMENTS = IDLE | OTHER_MODELS | REFUSED | SIZES | SWITCHES | WORDS
"""Of the file of a case: every argument that it may have."""
