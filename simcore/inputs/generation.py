"""The blocks `generation` and `rl` of a scenario: the inference engine, and one step of reinforcement learning.

With degrees of parallelism, which each model of a step may have of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simcore.inputs.block import Block, BytesOrAuto, Fraction, Name, Names, OpenMap, Text
from simcore.inputs.bounds import (
    DEGREE,
    EPOCHS,
    GENERATIONS,
    PROMPTS,
    SEQ_LEN,
    SEQUENCES,
    STAGES,
    STEPS_AHEAD,
    TOKENS,
)
from simcore.inputs.training import DType, Length, Sequences

__all__ = ["Critic", "Generation", "Mesh", "Reward", "Rl"]

_Degree = Annotated[int, Field(ge=1, le=DEGREE)]


class Mesh(Block):
    """Degrees of parallelism; the world size is pp x dp_replicate x dp_shard x cp x tp."""

    pp: Annotated[int, Field(ge=1, le=STAGES)] = Field(default=1, description="Pipeline stages")
    dp_replicate: _Degree = Field(default=1, description="Copies of the sharded data-parallel group")
    dp_shard: _Degree = Field(default=1, description="Ranks that split what the framework splits over data parallel")
    cp: _Degree = Field(default=1, description="Ranks that split the sequence")
    tp: _Degree = Field(default=1, description="Ranks that split a layer's matrices")
    ep: _Degree = Field(default=1, description="Ranks that split experts by count")
    etp: _Degree | None = Field(
        default=None, description="Ranks that split an expert by width; left out: framework's default"
    )

    @property
    def world_size(self) -> int:
        """Number of ranks: pp x dp_replicate x dp_shard x cp x tp."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp


class Critic(Block):
    """The critic of PPO: a model of values that is trained beside the policy, over the same ranks.

    What it does not say is as the policy's: framework, mesh, lengths, formats.
    """

    model: Text | None = Field(
        default=None, description="Preset, Hugging Face id, or path of a config.json; left out: the policy's"
    )
    micro_batch_size: Sequences = Field(default=1, description="Sequences per rank of one pass that trains")
    global_batch_size: Sequences | None = Field(
        default=None, description="Sequences of one step of its optimizer; left out: training.global_batch_size"
    )
    mesh: Mesh | None = Field(
        default=None, description="NeMo RL: its own degrees of parallelism; left out: the policy's"
    )
    sequence_parallel: bool | None = Field(
        default=None, description="NeMo RL: norms are split over its tp; left out: as the policy's"
    )
    implementation: Name = Field(default="auto", description="NeMo RL: whose layer code runs; auto: the policy's")
    framework_options: OpenMap | None = Field(
        default=None, description="NeMo RL: options of the framework for this model; left out: the policy's"
    )
    values_batch_size: Sequences = Field(default=1, description="Sequences per rank of one pass that makes values")
    recompute: Literal["none", "full"] = Field(default="none", description="Activation checkpointing: none, full")
    params: DType = Field(default="auto", description="Format in which its parameters rest; auto: the policy's")
    param_offload: bool = Field(
        default=False, description="Its parameters are on the host where no pass needs them"
    )
    optimizer_offload: bool = Field(
        default=False, description="Its optimizer's states are on the host but for its training"
    )


class Reward(Block):
    """A reward model of verl's loop: engines of vLLM on the policy's GPUs, which sleep but for scoring.

    OpenRLHF reads its model alone, which is an engine of DeepSpeed.
    """

    model: Text = Field(description="Preset, Hugging Face id, or path of a config.json")
    tp: _Degree = Field(default=1, description="Tensor-parallel degree of an engine")
    gpu_memory_utilization: Fraction = Field(default=0.5, description="Fraction of device memory that an engine takes")
    max_num_seqs: Annotated[int, Field(ge=1, le=SEQUENCES)] = Field(
        default=1024, description="Most sequences that run at once"
    )
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=TOKENS)] = Field(
        default=8192, description="Most tokens of one forward pass"
    )
    enforce_eager: bool = Field(default=True, description="Without CUDA graphs")


class Rl(Block):
    """One step of reinforcement learning."""

    trainer: Literal["nemo_rl", "verl", "trl", "openrlhf"] = Field(
        default="nemo_rl", description="Whose code runs the step"
    )
    version: Literal["auto", "0.18.0", "0.19.1", "0.24.0", "0.27.2", "1.16.0"] = Field(
        default="auto", description="Release of TRL; auto: 1.16.0"
    )
    prompts: Annotated[int, Field(ge=1, le=PROMPTS)] = Field(description="Prompts per step")
    generations: Annotated[int, Field(ge=1, le=GENERATIONS)] = Field(description="Generations per prompt")
    logprob_batch_size: Sequences = Field(default=1, description="Sequences per rank of one log-probability pass")
    reference: Literal["none", "device", "host"] = Field(
        default="none", description="Where the reference policy's copy lies"
    )
    generated_prompts: Annotated[int, Field(ge=1, le=PROMPTS)] | None = Field(
        default=None, description="Prompts per step that are answered, of which `prompts` are kept; left out: those"
    )
    prompt_tokens: Annotated[int, Field(ge=0, le=SEQ_LEN)] = Field(
        default=0, description="Tokens of a prompt, which are not decoded"
    )
    mean_tokens: Annotated[int, Field(ge=1, le=SEQ_LEN)] | None = Field(
        default=None, description="Mean tokens of a generated sequence, its prompt with it; the longest has "
        "generation.max_model_len; left out: every one does"
    )
    asynchronous: bool = Field(
        default=False, description="Engines generate the next step's sequences while the policy trains"
    )
    steps_ahead: Annotated[int, Field(ge=1, le=STEPS_AHEAD)] = Field(
        default=1, description="Most steps whose sequences engines generate before the policy trains on them"
    )
    on_policy_ratio: bool = Field(
        default=False, description="Ratios of probabilities are taken as 1: the policy's own pass is left out"
    )
    refit_buffer: Fraction = Field(default=0.3, description="Fraction of free memory that refitting may use")
    refit_bucket: Annotated[int, Field(ge=1, le=2**20)] = Field(
        default=2048, description="MiB of the buffer through which verl sends weights"
    )
    param_offload: bool = Field(
        default=False, description="verl: the policy's parameters are on the host where no pass needs them"
    )
    optimizer_offload: bool = Field(
        default=False, description="verl, OpenRLHF: the optimizer's states are on the host but for training; NeMo RL, "
        "with engines apart: while log-probabilities are made"
    )
    critic: Critic | None = Field(default=None, description="A model of values, which makes the step one of PPO")
    chunks: Annotated[int, Field(ge=1, le=PROMPTS)] = Field(
        default=1, description="Parts in which a step's prompts are scored and trained on, gradients kept between them"
    )
    epochs: Annotated[int, Field(ge=1, le=EPOCHS)] = Field(
        default=1, description="PPO, GRPO of TRL and OpenRLHF: times that a step trains on its sequences"
    )
    sync_reference: bool = Field(
        default=False, description="TRL: the reference model takes a share of the policy's parameters now and then"
    )
    reference_params: DType = Field(
        default="auto", description="TRL: format in which a second model's parameters rest; auto: the policy's"
    )
    gather_for_generation: bool = Field(
        default=True, description="TRL under zero3: all parameters are gathered while the policy itself generates"
    )
    layered_summon: bool = Field(
        default=False, description="verl: adapters are gathered layer by layer, and the engine is not sent the base"
    )
    reward: Reward | None = Field(
        default=None, description="verl, OpenRLHF: a reward model that scores what was generated"
    )


class Generation(Block):
    """The inference engine that generates, and its share of the GPUs."""

    engine: Name = Field(default="vllm", description="Inference engine: vllm, sglang beside a trainer, or "
                       "transformers: TRL's policy itself")
    version: Literal["auto", "0.12.0", "0.25.1", "0.5.6", "0.5.12.post1"] = Field(
        default="auto", description="Its version; auto: 0.12.0 where it serves, 0.25.1 under NeMo RL, which pins it; "
        "of SGLang 0.5.6 beside verl, 0.5.12.post1 beside NeMo RL"
    )
    colocated: bool = Field(default=True, description="On the GPUs that train")
    tp: _Degree = Field(default=1, description="Tensor-parallel degree of the engine")
    engines: _Degree = Field(default=1, description="Engines beside each other, where they have GPUs of their own")
    expert_parallel: bool = Field(
        default=False, description="vLLM: experts lie whole on its ranks, and are not cut by tp"
    )
    gpu_memory_utilization: Fraction | None = Field(
        default=None, description="Fraction of device memory that the engine takes; left out: 0.9, under NeMo RL 0.6"
    )
    max_model_len: Length | None = Field(
        default=None, description="Longest sequence, in tokens; left out: training.seq_len"
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=SEQUENCES)] | None = Field(
        default=None, description="Most sequences that run at once; left out: the engine's own, by device"
    )
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=TOKENS)] | None = Field(
        default=None, description="Most tokens of one forward pass; left out: the engine's own, by device"
    )
    chunked_prefill: bool = Field(default=True, description="vLLM: prompts are read in parts where passes are full")
    profiles_images: bool = Field(
        default=True, description="vLLM: its profile run encodes images, for which the cache then leaves room; false: "
        "skip_mm_profiling"
    )
    kv_cache_memory: BytesOrAuto = Field(
        default="auto", description="KV cache of a rank, such as 20 GiB; auto: what gpu_memory_utilization leaves"
    )
    block_size: Literal[16, 32, 64, 128, 256] | None = Field(
        default=None, description="vLLM: tokens of a block of the KV cache; left out: 16"
    )
    quantization: Literal["auto", "fp8", "bitsandbytes", "awq_marlin", "gptq_marlin", "compressed-tensors", "modelopt",
                          "modelopt_fp4", "mxfp8"] = Field(
        default="auto", description="Format of weights: fp8 or bitsandbytes quantise 16 bits while loading; auto, and "
        "others: as the model's quantization_config says"
    )
    unquantized: Names = Field(
        default=(), description="Parts of names of parameters that stay in 16 bits where a trainer sends them in 8"
    )
    kv_dtype: DType = Field(default="auto", description="Format of the KV cache")
    ssm_dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="Format of Mamba's recurrent state; auto: the engine's own, by version"
    )
    mamba_cache_mode: Literal["auto", "align", "all"] = Field(
        default="auto", description="Mamba's states that prefix caching keeps: of the last two blocks (align) or of "
        "all; auto: the engine's own, by model"
    )
    prefix_caching: bool | None = Field(
        default=None, description="Blocks are kept for prompts that begin alike; left out: as trainer or engine do"
    )
    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0, description="Tokens that the model's own module of multi-token prediction drafts in each pass"
    )
    accepted_tokens: Annotated[float, Field(ge=0, le=64)] = Field(
        default=0, description="Drafted tokens of a pass that are accepted, as the mean"
    )
    enforce_eager: bool = Field(default=False, description="Without CUDA graphs")
    max_loras: Annotated[int, Field(ge=0, le=2**16)] = Field(
        default=0, description="LoRA adapters that lie in buffers at once; 0: the engine serves none"
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = Field(
        default=16, description="Rank that those buffers are made for"
    )
    sleep_level: Annotated[int, Field(ge=0, le=2)] = Field(
        default=1, description="What the engine drops while training runs"
    )
