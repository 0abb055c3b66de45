"""Arguments of Megatron on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.rows import Idle, Limit, Unmodelled

__all__ = ["CHECKS", "NOT_MODELLED", "OF_TESTS", "PARAMS_NORM", "TIMERS", "WITHOUT_EFFECT", "limit_of_gradients"]


WITHOUT_EFFECT: Final = (
    Idle(("--log-*", "--no-log-*", "--disable-log-*", "--timing-log-*", "--tensorboard-*", "--wandb-*",
         "--one-logger-*", "--no-one-logger", "--config-logger-dir", "--logging-level", "--moe-per-layer-logging",
         "--app-tag-*", "--otel-*", "--nvtx-ranges", "--record-shapes", "--record-memory-history",
         "--memory-snapshot-path", "--profile*", "--use-pytorch-profiler", "--pytorch-profiler-*", "--rl-profile*",
         "--save-activations-interval", "--save-dgrads-interval", "--save-wgrads-interval",
         "--save-tokens-per-expert-interval", "--dump-param-to-param-group-map", "--moe-routing-trace-*",
         "--flight-recorder-*", "--no-flight-recorder-*", "--disable-flight-recorder-*", "--no-record-throughput",
         "--no-barrier-with-level-1-timing", "--indexer-log-interval"), "logging and measuring"),
    Idle(("--seed", "--data-parallel-random-init", "--te-rng-tracker", "--inference-rng-tracker", "--init-method-*",
         "--embedding-init-method-std", "--use-cpu-initialization", "--no-initialization"),
        "random numbers and initial weights"),
    Idle(("--lr", "--lr-*", "--min-lr", "--decoupled-*", "--warmup", "--override-opt*", "--use-checkpoint-opt*",
         "--weight-decay*", "--start-weight-decay", "--end-weight-decay", "--no-weight-decay-cond-type",
         "--apply-wd-to-qk-layernorm", "--adam-*", "--lion-*", "--muon-momentum", "--muon-*nesterov*",
         "--muon-coefficient-type",
         "--muon-scale-mode", "--muon-extra-scale-factor", "--muon-split-qkv", "--no-muon-split-qkv", "--head-lr-mult"),
        "values of the optimizer's step"),
    Idle(("--qk-clip-*", "--norm-epsilon", "--loss-scale*",
         "--initial-loss-scale", "--min-loss-scale", "--hysteresis", "--error-injection-*",
         "--result-rejected-tracker-filename"), "values that are looked at or scaled, in any case"),
    Idle(("--no-check-for-nan-in-loss-and-grad",), "no look at losses and gradients is timed"),
    Idle(("--train-iters", "--train-samples", "--exit-*", "--iterations-to-skip", "--eval-*",
         "--test-mode", "--full-validation", "--multiple-validation-sets", "--validation-set-names",
         "--start-eval-at-iter", "--phase-transition-iterations", "--train-sync-interval", "--iter-per-epoch",
         "--manual-gc*", "--no-manual-gc-eval", "--disable-manual-gc-eval",
         "--fault-injector-*", "--check-weight-hash-*", "--gpu-sniff-test-interval"),
        "length of the run, evaluation and pauses: not part of a step"),
    Idle(("--save*", "--load*", "--ckpt-*", "--no-ckpt-*", "--disable-ckpt-*", "--dist-ckpt-*", "--use-dist-ckpt",
         "--async-*", "--no-save-*", "--disable-save-*", "--no-load-*", "--finetune", "--pretrained-checkpoint",
         "--use-persistent-ckpt-worker", "--non-persistent-*", "--auto-detect-ckpt-format", "--replication*",
         "--distrib-optim-*", "--persistent-save-interval", "--verify-integrity", "--override-ckpt-iteration",
         "--strict-fsdp-*", "--no-strict-fsdp-*", "--disable-strict-fsdp-*", "--moe-use-upcycling",
         "--moe-upcycling-granularity",
         "--no-use-tokenizer-model-from-checkpoint-args", "--disable-use-tokenizer-model-from-checkpoint-args",
         "--export-model-type", "--export-te-mcore-model", "--export-default-te-spec", "--export-legacy-megatron",
         "--export-*", "--msc-*", "--disable-msc", "--enable-msc", "--object-storage-*"),
        "reading and writing files: not part of a step"),
    Idle(("--data-*", "--split", "--*-data-path", "--mock-data", "--num-workers", "--*mmap-bin-files", "--fim-*",
         "--dataloader-*", "--num-dataset-builder-threads", "--reset-*", "--eod-mask-loss", "--no-data-sharding",
         "--mid-level-dataset-surplus", "--per-*-path", "--sample-rate", "--mask-*", "--short-seq-prob",
         "--allow-ambiguous-pad-tokens", "--finetune-*", "--dataset-provider", "--sft-tokenizer-prompt-format",
         "--query-in-block-prob", "--use-one-sent-docs", "--data-args-path", "--packing-buffer-size"),
        "which samples are read, on the host"),
    Idle(("--tokenizer-*", "--no-tokenizer-*", "--disable-tokenizer-*", "--tiktoken-*", "--legacy-tokenizer",
         "--null-tokenizer-*", "--trust-remote-code", "--chat-template", "--use-gigatoken", "--hf-*",
         "--disable-pad-vocab-size", "--no-pad-vocab-size"), "which tokens a text becomes"),
    Idle(("--distributed-*", "--local-rank", "--lazy-mpu-init", "--*gloo-process-groups", "--nccl-communicator-*",
         "--high-priority-*", "--use-ring-exchange-p2p", "--use-sharp", "--sharp-enabled-group",
         "--create-all-gather-group", "--tp-comm-bootstrap-backend", "--pipeline-model-parallel-comm-backend",
         "--inprocess-*", "--enable-ft-package", "--calc-ft-timeouts", "--ft-*", "--straggler-*",
         "--disable-straggler-on-startup", "--run-workload-inspector-server", "--adlr-*", "--fake-process-group"),
        "how ranks find and watch each other"),
    Idle(("--rl-*", "--grpo-*", "--langrl-*", "--env-config", "--refit-method", "--inference-*", "--*dynamic-batching*",
         "--flash-decode", "--enable-chunked-prefill", "--*chunked-prefill", "--cache-mla-latents",
         "--max-tokens-to-oom",
         "--output-bert-embeddings", "--decode-only-cuda-graphs", "--nccl-all-reduce-for-prefill",
         "--mlp-chunks-for-prefill", "--symmetric-ar-type", "--mamba-inference-*", "--num-speculative-tokens",
         "--moe-pad-experts-for-cuda-graph-inference", "--batch-invariant-backend", "--temperature", "--top_*",
         "--top-n-*", "--return-log-probs", "--termination-id", "--output-*", "--use-flashinfer-*", "--port",
         "--stop-words",
         "--use-coordinator", "--suspend-*", "--async-mode", "--model-provider", "--no-rl-*", "--prompt*",
         "--no-langrl-*", "--no-inference-*",
         "--start_step", "--num-samples", "--moe-enable-routing-replay"),
        "inference and rollouts: not part of a training step"),
    Idle(("--use-mcore-models", "--enable-experimental", "--spec", "--no-position-embedding",
         "--bert-no-binary-head", "--onnx-safe"), "names of code and scales of initial weights"),
    Idle(("--rotary-*", "--rope-*", "--use-rope-scaling", "--mscale*", "--yarn-*", "--no-yarn-*", "--mrope-section",
         "--openai-gelu", "--apply-layernorm-1p", "--attention-softmax-in-fp32", "--apply-query-key-layer-scaling",
         "--relative-attention-*", "--glu-linear-offset"),
        "values within kernels that run in any case"),
    Idle(("--moe-router-*", "--moe-aux-loss-coeff", "--moe-z-loss-coeff",
         "--moe-token-drop-policy", "--mtp-loss-scaling-factor",
         "--moe-hybridep-num-*", "--moe-deepep-num-sms", "--moe-flex-dispatcher-num-sms"),
        "values of the router, and multiprocessors of an exchange that is not overlapped by their number"),
    Idle(("--no-persist-layer-norm", "--no-overlap-p2p-communication", "--*align-grad-reduce", "--*align-param-gather",
         "--ddp-average-in-collective", "--no-gradient-reduce-div-fusion", "--disable-symmetric-registration",
         "--fsdp-manual-registration", "--overlap-cpu-optimizer-d2h-h2d", "--no-pin-cpu-*",
         "--use-torch-optimizer-for-cpu-offload", "--disable-jit-fuser", "--no-bias-dropout-fusion",
         "--tp-comm-overlap-*", "--no-tp-comm-*", "--disable-tp-comm-*", "--decoder-tp-comm-overlap",
         "--*clone-scatter-output-in-embedding", "--disable-bf16-reduced-precision-matmul",
         "--cpu-offloading-retain-*", "--disable-mamba-mem-eff-path",
         "--mamba-training-ssm-states-dtype", "--ep-overlap-*", "--overlap-dispatch-*", "--moe-*-dtype",
         "--overlap-p2p-communication-warmup-flush", "--hierarchical-context-parallel-sizes",
         "--flash-attention-version", "--no-async-tensor-*", "--disable-async-tensor-*",
         "--no-scatter-gather-tensors-in-pipeline", "--use-same-sampling-*", "--fused-residual-rmsnorm",
         "--mla-down-proj-fusion", "--fp8-interval", "--fp8-output-proj",
         "--enable-full-sharding-in-hsdp", "--torch-fsdp2-*", "--*fp8-wgrad"),
        "how a kernel or exchange runs, in ways that are not told apart"),
    Idle(("--mamba-*", "--mtp-hybrid-override-pattern", "--mtp-use-repeated-layer"), "the model has no such layers"),
    Idle(("--dsa-*", "--no-dsa-*", "--disable-dsa-*", "--linear-*", "--mhc-*", "--kitchen-*", "--gdp-*", "--gtp-*",
         "--hybrid-attention-ratio",
         "--hybrid-mlp-ratio", "--moe-paged-stash-*", "--moe-ncclep-*", "--moe-permute-fusion-into-hybridep",
         "--moe-hybridep-pad-*", "--moe-use-grouped-tensor", "--logits-*", "--qad-*", "--use-kitchen-*",
         "--freeze-*", "--packing-*"), "settings of what is refused where it is on"),
    Idle(("--batch-size", "--checkpoint-activations", "--model-parallel-size"), "old words, which Megatron refuses"),
    Idle(("--biencoder-*", "--bert-*", "--block-data-path", "--embedding-path", "--evidence-data-path",
         "--indexer-*", "--retriever-*", "--titles-data-path", "--ict-*", "--dino-*", "--swin-*", "--vision-*",
         "--num-channels", "--num-classes", "--classes-fraction", "--img-*", "--patch-dim", "--disable-vision-*",
         "--vocab-extra-ids"), "models of images and of retrieval"),
)
"""Each argument is listed under the first row that fits, if nothing else reads it."""

PARAMS_NORM: Final = ("a norm over all parameters after each step, for which the host waits (main d98e8a64 "
                      "training.py:4874: about 10 ms): not timed without zeros of gradients in the log")
TIMERS: Final = "timers before which the host waits for all kernels, and for the other ranks: not timed"
CHECKS: Final = "losses, or gradients bucket by bucket, are looked at, for which the host waits: not timed"
NOT_MODELLED: Final = (
    Unmodelled(("--overlap-param-gather-with-optimizer-step",),
               "the first parameters are gathered after the optimizer's step, not during it"),
    Unmodelled(("--empty-unused-memory-level",), "from 1 on cached blocks are given back within a step (training.py): "
               "memory reserved and time are those without that", (0, "0")),
    Unmodelled(("--timing-log-level",), TIMERS, (0, "0")),
    Unmodelled(("--log-max-attention-logit",), "the largest logit of every head is one more result of attention, which "
               "FlashAttention does not have: time and kernel are those without it"),
    Unmodelled(("--check-for-*",), CHECKS),
    Unmodelled(("--rerun-mode",), "steps that are run again to compare them", ("disabled", "validate_results")),
    Unmodelled(("--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"),
               "sizes, and degrees, that a checkpoint has go before those of the command (checkpointing.py:2250): the "
               "command's are simulated"),
    Unmodelled(("--use-mup", "--mup-*"), "embeddings and logits that are scaled, a tensor of each more"),
    Unmodelled(("--muon-*",), "products and exchanges of Muon's step: five iterations on the ranks' own parts of "
               "matrices are counted"),
    Unmodelled(("--moe-router-fusion",), "TransformerEngine's kernels of the router: core's own are simulated"),
    Unmodelled(("--moe-router-force-biased", "--moe-router-load-balancing-type"),
        "routing is taken as balanced, whatever the router aims at"),
)
"""Arguments that change what runs, by little, which the answer leaves out."""

OF_TESTS: Final = (
    Idle(("TEST_TYPE", "MODE", "LAUNCHER", "METRICS", "THROUGHPUT_TEST_PARAMS", "THROUGHPUT_TEST_PARAMS.*",
          "TEST_EVALUATION", "TEST_EVALUATION.*", "METRICS.*"), "how Megatron's tests start and judge the run"),
    Idle(("BEFORE_SCRIPT", "AFTER_SCRIPT"), "commands around the test"),
    Idle(("MODEL_ARGS_*.*",), "a second run of the test, which resumes the first"),
)
"""Other keys of a model_config.yaml."""


def limit_of_gradients(key: str) -> Limit:
    """Row of the norm at which gradients are clipped.

    `ChainedOptimizer.step` (core 0.16.1 optimizer/optimizer.py:1307, main d98e8a64 :1894), which every optimizer is in,
    takes the norm in any case, and multiplies gradients above 0 alone; null it compares with 0, and stops.
    """
    return Limit(key, "a value: a clip is in the fixed time of a step",
                 "nothing is clipped, though the norm is taken: the answer keeps the fixed time of a step of runs that "
                 "clip, in which a product over all gradients is too much",
                 "core compares it with 0 in the optimizer's step, which stops (0 switches the clip off)")
