"""Arguments of Megatron on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Taken
from simcore.recipes.rows import Idle, Limit, Unmodelled, leave_out

__all__ = [
    "BESIDE",
    "CHECKS",
    "COPIES_BESIDE",
    "MAMBA_KERNELS",
    "NOT_MODELLED",
    "OF_TESTS",
    "PARAMS_NORM",
    "RERUN",
    "SENDS",
    "SMS",
    "TIMERS",
    "VALIDATES",
    "WITHOUT_EFFECT",
    "Beside",
    "is_interleaved",
    "leave_beside",
    "left_out",
    "limit_of_gradients",
]


WITHOUT_EFFECT: Final = (
    Idle(("--log-batch-size-to-tensorboard", "--log-learning-rate-to-tensorboard", "--data-impl", "--DDP-impl"),
         "arguments of releases before core: logging, how samples are stored, the one way of data parallelism"),
    Idle(("--log-*", "--no-log-*", "--disable-log-*", "--timing-log-*", "--tensorboard-*", "--wandb-*",
         "--one-logger-*", "--no-one-logger", "--config-logger-dir", "--logging-level", "--moe-per-layer-logging",
         "--app-tag-*", "--otel-*", "--nvtx-ranges", "--record-shapes", "--record-memory-history",
         "--memory-snapshot-path", "--profile*", "--use-pytorch-profiler", "--pytorch-profiler-*", "--rl-profile*",
         "--save-activations-interval", "--save-dgrads-interval", "--save-wgrads-interval",
         "--save-tokens-per-expert-interval", "--dump-param-to-param-group-map", "--moe-routing-trace-*",
         "--flight-recorder-*", "--no-flight-recorder-*", "--disable-flight-recorder-*", "--no-record-throughput",
         "--no-barrier-with-level-1-timing", "--indexer-log-interval"), "logging and measuring"),
    Idle(("--seed", "--use-same-sampling-*", "--data-parallel-random-init", "--te-rng-tracker",
             "--inference-rng-tracker", "--init-method-*",
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
         "--msc-*", "--disable-msc", "--enable-msc", "--object-storage-*"),
        "reading and writing files: not part of a step"),
    Idle(("--data-*", "--split", "--*-data-path", "--mock-data", "--num-workers", "--*mmap-bin-files", "--fim-*",
         "--dataloader-type", "--dataloader-seq-length", "--dataloader-fast-cache-load",
         "--dataloader-defer-npy-index-mmap", "--num-dataset-builder-threads", "--reset-*", "--eod-mask-loss",
         "--no-data-sharding",
         "--mid-level-dataset-surplus", "--per-*-path", "--sample-rate", "--mask-*", "--short-seq-prob",
         "--allow-ambiguous-pad-tokens", "--finetune-*", "--dataset-provider", "--sft-tokenizer-prompt-format",
         "--query-in-block-prob", "--use-one-sent-docs", "--data-args-path", "--packing-buffer-size"),
        "which samples are read, on the host"),
    Idle(("--tokenizer-*", "--no-tokenizer-*", "--disable-tokenizer-*", "--tiktoken-*", "--legacy-tokenizer",
         "--null-tokenizer-*", "--trust-remote-code", "--chat-template", "--use-gigatoken", "--hf-*",
         "--disable-pad-vocab-size", "--no-pad-vocab-size"), "which tokens a text becomes"),
    Idle(("--distributed-timeout-*", "--local-rank", "--lazy-mpu-init", "--*gloo-process-groups",
             "--tp-comm-bootstrap-backend",
         "--inprocess-*", "--enable-ft-package", "--calc-ft-timeouts", "--ft-*", "--straggler-*",
         "--disable-straggler-on-startup", "--run-workload-inspector-server", "--adlr-*", "--fake-process-group"),
        "how ranks find and watch each other"),
    Idle(("--rl-*", "--grpo-*", "--langrl-*", "--env-config", "--refit-method", "--inference-*", "--*dynamic-batching*",
         "--flash-decode", "--enable-chunked-prefill", "--*chunked-prefill", "--cache-mla-latents",
         "--max-tokens-to-oom",
         "--output-bert-embeddings", "--decode-only-cuda-graphs", "--nccl-all-reduce-for-prefill",
         "--mlp-chunks-for-prefill", "--mamba-inference-*", "--num-speculative-tokens",
         "--moe-pad-experts-for-cuda-graph-inference", "--batch-invariant-backend", "--temperature", "--top_*",
         "--top-n-*", "--return-log-probs", "--termination-id", "--output-*", "--use-flashinfer-*", "--port",
         "--stop-words",
         "--use-coordinator", "--suspend-*", "--async-mode", "--model-provider", "--no-rl-*", "--prompt*",
         "--no-langrl-*", "--no-inference-*",
         "--start_step", "--num-samples", "--moe-enable-routing-replay"),
        "inference and rollouts: not part of a training step"),
    Idle(("--use-mcore-models", "--enable-experimental", "--no-position-embedding",
         "--bert-no-binary-head", "--onnx-safe"), "names of code and scales of initial weights"),
    Idle(("--rotary-*", "--rope-*", "--use-rope-scaling", "--mscale*", "--yarn-*", "--no-yarn-*", "--mrope-section",
         "--apply-layernorm-1p", "--attention-softmax-in-fp32", "--apply-query-key-layer-scaling",
         "--relative-attention-*", "--glu-linear-offset"),
        "values within kernels that run in any case"),
    Idle(("--moe-router-bias-update-rate", "--moe-router-enable-expert-bias", "--moe-router-quantile-balancing-ema",
          "--moe-router-topk-scaling-factor", "--moe-router-*", "--moe-aux-loss-coeff", "--moe-z-loss-coeff",
          "--moe-token-drop-policy", "--mtp-loss-scaling-factor"), "values of the router and of the loss"),
    Idle(("--no-persist-layer-norm",), "of Apex's norm: TransformerEngine's is simulated (core/fusions/"
         "fused_layer_norm.py:99)"),
    Idle(("--cpu-offloading-retain-*",), "the peak has the same pinned buffers"),
    Idle(("--fp8-interval",), "TransformerEngine ignores it from 1.8 on (core/extensions/transformer_engine.py:3355)"),
    Idle(("--openai-gelu", "--enable-full-sharding-in-hsdp", "--no-scatter-gather-tensors-in-pipeline",
          "--no-async-tensor-*", "--disable-async-tensor-*", "--decoder-tp-comm-overlap"),
         "nothing in a GPT of core 0.16.1 and main reads it"),
    Idle(("--*fp8-wgrad",), "nothing computes in fp8"),
    Idle(("--ddp-average-in-collective",), "gradients are divided within the reduction, as it is timed"),
    Idle(("--mamba-*", "--mtp-hybrid-override-pattern", "--mtp-use-repeated-layer"), "the model has no such layers"),
    Idle(("--dsa-*", "--no-dsa-*", "--disable-dsa-*", "--linear-conv-*", "--linear-key-*", "--linear-num-*",
             "--linear-scaler-*", "--linear-value-*", "--mhc-*", "--kitchen-*", "--gdp-*", "--gtp-*",
         "--hybrid-attention-ratio",
         "--hybrid-mlp-ratio", "--moe-paged-stash-*", "--moe-ncclep-*", "--logits-*", "--qad-*",
         "--freeze-*", "--packing-*", "--export-*", "--torch-fsdp2-*"), "settings of what is refused where it is on"),
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
MAMBA_KERNELS: Final = ("Mamba's convolution and scan as kernels of their own, which keep more (core/ssm/"
                        "mamba_mixer.py:514): the one kernel is simulated")
RERUN: Final = "steps that are run again to compare them"
VALIDATES: Final = ("disabled", "validate_results")
"""Modes in which a step is run again only where its result is doubtful."""
SENDS: Final = ("sends between stages that wait for each other (core/pipeline_parallel/schedules.py:1576): they are "
                "timed beside products")
COPIES_BESIDE: Final = ("copies to and from the host beside its step (core/optimizer/cpu_offloading/"
                        "hybrid_optimizer.py): they are timed before and after it")
SMS: Final = "multiprocessors that an exchange of tokens takes from other kernels: both run at their rates"
_PERMUTED: Final = "tokens are permuted, and padded, within HybridEP's exchange: counted as without it"
_LAYERS: Final = tuple(f"megatron.core.models.{name}_stack_spec" for name in (
    "mamba.mamba_layer_specs mamba", "hybrid.hybrid_layer_specs hybrid"))
NOT_MODELLED: Final = (
    Unmodelled(("--overlap-param-gather-with-optimizer-step",),
               "the first parameters are gathered after the optimizer's step, not during it"),
    Unmodelled(("--empty-unused-memory-level",), "from 1 on cached blocks are given back within a step (training.py): "
               "memory reserved and time are those without that", (0, "0")),
    Unmodelled(("--timing-log-level",), TIMERS, (0, "0")),
    Unmodelled(("--log-max-attention-logit",), "the largest logit of every head is one more result of attention, which "
               "FlashAttention does not have: time and kernel are those without it"),
    Unmodelled(("--check-for-*",), CHECKS),
    Unmodelled(("--rerun-mode",), RERUN, VALIDATES),
    Unmodelled(("--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"),
               "sizes, and degrees, that a checkpoint has go before those of the command (checkpointing.py:2250): the "
               "command's are simulated"),
    Unmodelled(("--use-mup", "--mup-*"), "embeddings and logits that are scaled, a tensor of each more"),
    Unmodelled(("--moe-router-fusion",), "TransformerEngine's kernels of the router: core's own are simulated"),
    Unmodelled(("--dataloader-inter-document-masking",), "attention within documents, whose lengths the arguments do "
               "not say: it is counted over whole rows"),
    Unmodelled(("--logits-save-dir",), "logits that are written in each step"),
    Unmodelled(("--spec",), "layers by code of a file: those of the arguments are simulated", (*_LAYERS,
            *(name.split() for name in _LAYERS), *(f"[{name}]" for name in _LAYERS))),
    Unmodelled(("--disable-jit-fuser", "--no-bias-dropout-fusion"), "pointwise operators of torch in place of compiled "
               "ones, which move and keep more: the compiled ones are simulated"),
    Unmodelled(("--disable-bf16-reduced-precision-matmul",), "products of torch's own that sum in fp32: they are timed "
               "as the others"),
    Unmodelled(("--flash-attention-version",), "which of flash-attn's kernels computes attention: they are not told "
               "apart"),
    Unmodelled(("--fused-residual-rmsnorm",), "residual and norm in one kernel (core/extensions/"
               "transformer_engine.py:1054): they are two"),
    Unmodelled(("--mla-down-proj-fusion",), "both projections down of latent attention as one, with the norm before "
               "it (core/models/gpt/gpt_layer_specs.py:257): they are two"),
    Unmodelled(("--disable-mamba-mem-eff-path",), MAMBA_KERNELS),
    Unmodelled(("--mamba-training-ssm-states-dtype",), "the format of states between Mamba's chunks: it is fp32"),
    Unmodelled(("--moe-use-grouped-tensor",), "weights of experts that are handed on as one tensor"),
    Unmodelled(("--use-sharp", "--sharp-enabled-group"), "sums within switches: rates are those of NCCL's own choice"),
    Unmodelled(("--nccl-communicator-config-path", "--use-ring-exchange-p2p", "--symmetric-ar-type"),
               "ways and buffers of exchanges: rates and buffers are those of NCCL's own choice"),
    Unmodelled(("--distributed-backend", "--pipeline-model-parallel-comm-backend"), "exchanges by another library: "
               "NCCL's are timed", ("nccl",)),
    Unmodelled(("--create-all-gather-group",), "a communicator more, with its buffers, by which gathers run beside "
               "reductions"),
    Unmodelled(("--high-priority-*",), "exchanges go before others: all run at their rates"),
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


@dataclass(frozen=True, slots=True)
class Beside:
    """Arguments that change what runs only beside a setting: `is_set` asks the scenario's values for it.

    `otherwise`: why they have no effect elsewhere. `off`: values beside false with which they change nothing.
    """

    keys: tuple[str, ...]
    why: str
    is_set: Callable[[Mapping[str, Any]], bool]
    otherwise: str
    off: tuple[Any, ...] = ()


def _option(name: str, *, wanted: str | bool) -> Callable[[Mapping[str, Any]], bool]:
    return lambda values: values.get("framework_options", {}).get(name) == wanted


def is_interleaved(values: Mapping[str, Any]) -> bool:
    """True if a rank of the scenario's pipeline has several stages."""
    pp, pipeline = values.get("mesh", {}).get("pp", 1), values.get("training", {}).get("pipeline", {})
    return bool(pp > 1 and (pipeline.get("virtual_stages", 1) > 1 or len(pipeline.get("layers", ())) > pp))


def _is_staged(values: Mapping[str, Any]) -> bool:
    return bool(values.get("mesh", {}).get("pp", 1) > 1)


def _is_split(values: Mapping[str, Any]) -> bool:
    return bool(values.get("training", {}).get("sequence_parallel"))


def _is_on_host(values: Mapping[str, Any]) -> bool:
    return "optimizer" in values.get("training", {}).get("offload", {})


def _is_unsharding(values: Mapping[str, Any]) -> bool:
    return "data_parallel_sharding_strategy" in values.get("framework_options", {})


def _is_muon(values: Mapping[str, Any]) -> bool:
    return "muon" in str(values.get("training", {}).get("optimizer", {}).get("name"))


_MUON: Final = "the optimizer is not Muon"
_ON_DEVICE: Final = "the optimizer is on the device"
BESIDE: Final = (
    Beside(("--no-overlap-p2p-communication", "--overlap-p2p-communication-warmup-flush"), SENDS, is_interleaved,
           "no rank has several stages"),
    Beside(("--*align-grad-reduce", "--*align-param-gather"), "whether stages begin to reduce and to gather together: "
           "each does when its own tensors are there", _is_staged, "there is one stage"),
    Beside(("--*clone-scatter-output-in-embedding",), "the whole embedded sequence, which stays behind its parts: a "
           "part is a copy", _is_split, "the sequence is not split"),
    Beside(("--no-pin-cpu-*", "--use-torch-optimizer-for-cpu-offload"), "another update on the host, and copies that "
           "are not pinned: rates are those of pinned copies and of the host's vector units", _is_on_host, _ON_DEVICE),
    Beside(("--overlap-cpu-optimizer-d2h-h2d",), COPIES_BESIDE, _is_on_host, _ON_DEVICE),
    Beside(("--tp-comm-overlap-*", "--no-tp-comm-*", "--disable-tp-comm-*"),
            "which exchanges of tensor parallelism run "
           "beside products, and in which pieces: all do", _option("tp_comm_overlap", wanted=True),
           "--tp-comm-overlap is off"),
    Beside(("--ep-overlap-early-attn-memory-release",), "what attention keeps, which goes before the other "
           "microbatch's exchange: it stays until after it", _option("overlap_moe_expert_parallel_comm", wanted=True),
           "--overlap-moe-expert-parallel-comm is off"),
    Beside(("--overlap-dispatch-*",), "weight gradients of experts beside the exchange of their tokens' gradients: one "
           "after the other", lambda values: values.get("mesh", {}).get("ep", 1) > 1, "experts are not spread"),
    Beside(("--moe-dispatch-fwd-dtype", "--moe-combine-bwd-dtype"), "tokens that are sent to experts in 8 bits: they "
           "are sent in 16", lambda values: values.get("mesh", {}).get("ep", 1) > 1, "experts are not spread",
           ("bf16",)),
    Beside(("--moe-hybridep-num-*", "--moe-deepep-num-sms", "--moe-flex-dispatcher-num-sms"), SMS,
           _option("moe_token_dispatcher_type", wanted="flex"), "it is read with the dispatcher flex"),
    Beside(("--moe-permute-fusion-into-hybridep", "--moe-hybridep-pad-*"), _PERMUTED,
           _option("moe_flex_dispatcher_backend", wanted="hybridep"), "HybridEP alone reads it"),
    Beside(("--disable-symmetric-registration", "--fsdp-manual-registration"), "how NCCL registers its buffers: rates "
           "and buffers are those of its own choice", _option("nccl_ub", wanted=True), "--use-nccl-ub is off"),
    Beside(("--no-gradient-reduce-div-fusion",), "a pass that divides gradients before they are reduced: it is not "
           "timed", _is_unsharding, "Megatron-FSDP alone reads it"),
    Beside(("--muon-tp-mode",), "exchanges of Muon's step over tensor parallel ranks: each works on its part", _is_muon,
           _MUON, ("blockwise",)),
    Beside(("--muon-num-ns-steps",), "products of Muon's step: five iterations are counted", _is_muon, _MUON, (5,)),
    Beside(("--muon-fp32-matmul-prec",), "the format of Muon's products: they are timed in bf16", _is_muon, _MUON,
           ("medium",)),
    Beside(("--muon-use-syrk",), "a kernel of Muon's products that computes half of a symmetric matrix", _is_muon,
            _MUON),
    Beside(("--muon-scalar-optimizer",), "the optimizer of what is no matrix: Adam is counted", _is_muon, _MUON,
           ("adam",)),
)
"""Arguments whose effect is left out, each with the setting that it needs."""


def left_out(values: Mapping[str, Any]) -> tuple[Idle | Unmodelled, ...]:
    """Returns all rows of arguments that give a scenario with `values` nothing; the first that fits counts."""
    beside = (Unmodelled(row.keys, row.why, row.off) if row.is_set(values) else Idle(row.keys, row.otherwise)
              for row in BESIDE)
    return *beside, *NOT_MODELLED, *WITHOUT_EFFECT


def leave_beside(draft: Draft, row: Beside, taken: Taken[Any] | None) -> None:
    """Lists a key of `row`, if the recipe has it."""
    if taken is not None and row.is_set(draft.values):
        leave_out(draft, Unmodelled(row.keys, row.why, row.off), [taken])
    else:
        draft.idle(taken, row.otherwise)


def limit_of_gradients(key: str) -> Limit:
    """Row of the norm at which gradients are clipped.

    `ChainedOptimizer.step` (core 0.16.1 optimizer/optimizer.py:1307, main d98e8a64 :1894), which every optimizer is in,
    takes the norm in any case, and multiplies gradients above 0 alone; null it compares with 0, and stops.
    """
    return Limit(key, "a value: a clip is in the fixed time of a step",
                 "nothing is clipped, though the norm is taken: the answer keeps the fixed time of a step of runs that "
                 "clip, in which a product over all gradients is too much",
                 "core compares it with 0 in the optimizer's step, which stops (0 switches the clip off)")
