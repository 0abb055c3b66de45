"""The `training` block of a scenario: how a model is trained. Batches count sequences, lengths count tokens."""

from __future__ import annotations

from fractions import Fraction as Exact
from math import ceil
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from simcore.inputs.block import (
    BY_SHAPE,
    FLAG,
    LIST,
    MAP,
    WORD,
    Block,
    Count,
    Fraction,
    Many,
    Name,
    Names,
    PatternOrAuto,
)
from simcore.inputs.bounds import BATCH, BLOCK, EPOCHS, FACTOR, IMAGE, LAYERS, LORA_RANK, SEQ_LEN, TOKENS
from simcore.inputs.optimizers import DECAYED, LOW_RANK, OPTIMIZERS

__all__ = ["Capacity", "DType", "Draws", "Imbalance", "Lengths", "Lora", "LowRank", "Observed", "Offload",
           "OffloadPart", "Optimizer", "Pipeline", "Precision", "Quantization", "Recompute", "Routing", "Seed",
           "Training"]  # fmt: skip

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
DType = Literal["auto", "fp32", "bf16", "fp16", "fp8"]
MAX_TOKENS: Final = TOKENS
"""Tokens of one microbatch."""


Number = Annotated[int, Field(ge=1, le=2**17)]
"""Number of draws."""
Length = Annotated[int, Field(ge=1, le=SEQ_LEN)]
"""Tokens of a sequence."""
Sequences = Annotated[int, Field(ge=1, le=BATCH)]
Side = Annotated[int, Field(ge=1, le=IMAGE)]
LayerCount = Annotated[int, Field(ge=1, le=LAYERS)]


class Lengths(Block):
    """Random lengths of sequences from a distribution; a microbatch is padded to its longest."""

    mean: Count = Field(description="Mean length of a sequence, in tokens, before it is cut")
    max: Count = Field(description="Longest sequence, in tokens: what is longer is cut")
    seed: Seed = Field(default=0, description="Seed of the draw")
    draws: Number = Field(default=1000, description="Number of drawn steps")
    distribution: Literal["lognormal", "uniform"] = Field(default="lognormal", description="How lengths scatter")
    sigma: Annotated[float, Field(gt=0, le=10)] = Field(
        default=1.0, description="Of a lognormal length's logarithm: its standard deviation"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Lengths:
        if self.mean > self.max:
            raise ValueError(f"expected mean <= max, got mean {self.mean} and max {self.max}")
        if self.distribution == "uniform" and 2 * self.mean <= self.max:
            raise ValueError(f"expected mean > max / 2 of uniform lengths, got mean {self.mean} and max {self.max}")
        return self


class Observed(Block):
    """Lengths of a data set, from which steps are drawn; a microbatch is padded to its longest."""

    observed: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=2**20)] = Field(
        description="Lengths of sequences, in tokens, each as likely as the others"
    )
    seed: Seed = Field(default=0, description="Seed of the draw")
    draws: Number = Field(default=1000, description="Number of drawn steps")


def _lengths_kind(value: object) -> str:
    keys = value if isinstance(value, dict) else vars(value) if isinstance(value, Block) else None
    if keys is None:
        return "<word>"
    return "<observed>" if "observed" in keys else "<lengths>"


class Recompute(Block):
    """Activations that are computed again in backward instead of being kept."""

    mode: Literal["uniform", "block", "every", "per_op"] = Field(description="How layers are chosen")
    num_layers: LayerCount = Field(
        default=1, description="Layers of a recomputed group (uniform), of a stage (block), or one of which is (every)"
    )
    modules: Names = Field(default=(), description="Modules or operators that are recomputed")


class Pipeline(Block):
    """Cut of the model into pipeline stages, and the schedule in which they run."""

    schedule: Name = Field(default="1f1b", description="1f1b, gpipe, or zero bubble: zb_h1, interleaved_zb, zbv")
    virtual_stages: LayerCount = Field(
        default=1, description="Model chunks on each pipeline rank"
    )
    layers: Annotated[
        Annotated[Literal["auto"], WORD]
        | Annotated[tuple[Annotated[int, Field(ge=0, le=LAYERS)], ...], Field(strict=False, max_length=LAYERS), LIST],
        BY_SHAPE,
    ] = Field(default="auto", description="Layers of each stage, in order; auto: what the framework does")


class Imbalance(Block):
    """Routing in which the busiest rank gets `imbalance` times the mean load of tokens."""

    imbalance: Annotated[float, Field(ge=1, le=FACTOR)] = Field(
        description="Load of the fullest rank over the mean; of ep ranks at most ep times")


class Capacity(Block):
    """Routing in which experts take tokens up to a capacity and drop the rest."""

    capacity_factor: Annotated[float, Field(gt=0, le=FACTOR)] = Field(description="Capacity over mean load")
    pad: bool = Field(default=True, description="Each expert's rows are filled up to its capacity; false: they are as "
                      "many as tokens choose it, at most that")


class Draws(Block):
    """Routing in which loads of experts are drawn at random; each draw is one step."""

    seed: Seed = Field(description="Seed of the draws")
    draws: Number = Field(default=1000, description="Number of draws")
    concentration: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Dirichlet concentration of the experts' popularity; left out: all alike"
    )


def _routing_kind(value: object) -> str:
    keys = value if isinstance(value, dict) else vars(value) if isinstance(value, Block) else None
    if keys is None:
        return "<word>"
    return "<imbalance>" if "imbalance" in keys else "<capacity>" if "capacity_factor" in keys else "<draws>"


Routing = Annotated[
    Annotated[Literal["auto", "balanced"], WORD]
    | Annotated[Imbalance, Tag("<imbalance>")]
    | Annotated[Capacity, Tag("<capacity>")]
    | Annotated[Draws, Tag("<draws>")],
    Discriminator(_routing_kind),
]
"""Distribution of tokens over experts; auto: balanced, or as a framework's untrained router was measured."""


class Precision(Block):
    """Number formats of stored, computed and reduced tensors."""

    params: DType = Field(default="auto", description="Format in which parameters are stored")
    experts: DType = Field(default="auto", description="Format in which routed experts are stored")
    compute: Literal[DType, "fp4"] = Field(default="bf16", description="Format of forward and backward")
    grad_reduce: DType = Field(default="auto", description="Format in which gradients are reduced")
    main_grads: DType = Field(default="auto", description="Format in which gradients are accumulated")


if TYPE_CHECKING:
    OptimizerName = str
else:  # a type checker knows no Literal of names that are computed
    OptimizerName = Literal[tuple(OPTIMIZERS)]


class LowRank(Block):
    """Projection of gradients to a low rank, whose moments the optimizers galore and apollo keep."""

    rank: Annotated[int, Field(ge=1, le=LORA_RANK)] = Field(default=128, description="Rank that is left of a gradient")
    target_modules: Annotated[Annotated[Literal["all-linear"], WORD] | Annotated[Names, LIST], BY_SHAPE] = Field(
        default="all-linear", description="Parts of names of linears whose weights are projected; all-linear: all of "
        "them, an untied lm_head too"
    )
    proj_type: Literal["std", "reverse_std", "right", "left", "full"] = Field(
        default="std", description="Side that is projected: std the shorter one, reverse_std the longer one, full both"
    )
    proj: Literal["random", "svd"] | None = Field(
        default=None, description="Of apollo: a random matrix, or singular vectors; left out: random"
    )
    scale_type: Literal["channel", "tensor"] | None = Field(
        default=None, description="Of apollo: one factor of the gradient a channel, or one; left out: channel"
    )


class Optimizer(Block):
    """The optimizer and the formats of its states."""

    name: OptimizerName = Field(default="adamw", description="Optimizer")
    implementation: Literal["auto", "foreach", "fused", "for_loop", "te", "bitsandbytes", "torchao", "flashoptim",
                            "dion", "cpu"] = Field(
        default="auto", description="Whose code runs the step: it decides what the step needs for a moment"
    )
    master: Literal["auto", "none", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="Format of master parameters"
    )
    moments: Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8", "int4"] = Field(
        default="auto", description="Format of moments"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="Momentum of sgd, rmsprop: 0 keeps no buffer; left out: the framework's own"
    )
    weight_decay: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Of sgd, rmsprop, adagrad, whose step copies gradients for it; left out: 0"
    )
    paged: bool = Field(default=False, description="States in memory that the driver pages to the host")
    low_rank: LowRank | None = Field(
        default=None, description="Projection of gradients by galore and apollo; left out: each of its keys' own"
    )

    @model_validator(mode="after")
    def _projects(self) -> Optimizer:
        if self.weight_decay is not None and self.name not in DECAYED:
            raise ValueError(f"weight_decay: {self.name}'s changes no bytes: expected name: {', '.join(DECAYED)}")
        if self.low_rank is None:
            return self
        if self.name not in LOW_RANK:
            raise ValueError(f"low_rank: expected name: {' or '.join(LOW_RANK)} beside it")
        own = [key for key in ("proj", "scale_type") if getattr(self.low_rank, key) is not None]
        if own and self.name != "apollo":
            raise ValueError(f"low_rank: {' and '.join(own)}: expected name: apollo beside it")
        return self


class OffloadPart(Block):
    """Part of a kind of tensors (such as optimizer states) that is kept outside the device."""

    space: Literal["host", "nvme"] = Field(description="Where it lies")
    fraction: Fraction = Field(default=1.0, description="Fraction that lies there, in (0, 1]")


_Offloaded = Annotated[
    Annotated[Literal["none", "host", "nvme"], WORD] | Annotated[OffloadPart, MAP], BY_SHAPE
]  # fmt: skip


class Offload(Block):
    """Kinds of tensors that are kept outside the device, in host memory or on NVMe drives."""

    params: _Offloaded = Field(default="none", description="Parameters")
    optimizer: _Offloaded = Field(default="none", description="Optimizer states")
    gradients: _Offloaded = Field(default="none", description="Gradients")
    activations: _Offloaded = Field(default="none", description="Activations kept for backward")

    def part(self, name: str) -> tuple[str, float]:
        """(space, fraction) of the tensors `name` that are kept outside the device.

        ("none", 0.0) if all are on it. `name`: params, optimizer, gradients or activations; space: "host" or "nvme".
        """
        offloaded = getattr(self, name)
        if isinstance(offloaded, OffloadPart):
            return offloaded.space, offloaded.fraction
        return offloaded, 0.0 if offloaded == "none" else 1.0


class Lora(Block):
    """Low-rank adapters (used by the methods lora and qlora)."""

    rank: Annotated[int, Field(ge=1, le=LORA_RANK)] = Field(default=8, description="Rank of the adapters")
    alpha: Annotated[float, Field(gt=0)] = Field(
        default=32.0, description="Scale: the adapter is multiplied by alpha / rank"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Dropout of the adapter's input or output, in [0, 1)"
    )
    dropout_position: Literal["auto", "pre", "post"] = Field(
        default="auto", description="Dropout of the adapter's input (pre) or of its output (post)"
    )
    use_dora: bool = Field(default=False, description="DoRA: a vector of magnitudes beside each adapter")
    use_rslora: bool = Field(default=False, description="The adapter is multiplied by alpha / sqrt(rank)")
    target_modules: Annotated[Annotated[PatternOrAuto, WORD] | Annotated[Names, LIST], BY_SHAPE] = Field(
        default="auto", description="Module names or patterns that get an adapter; a text is a regular expression of "
        "whole names, as PEFT takes it"
    )
    exclude_modules: Names = Field(default=(), description="Module names or patterns that get none")
    expert_adapters: Literal["auto", "none", "shared", "per_expert"] = Field(
        default="auto", description="Adapters of routed experts"
    )
    dtype: DType = Field(default="auto", description="Format of the adapters")
    modules_to_save: Names = Field(default=(), description="Modules that train as a whole, in a copy beside the "
                                   "frozen one: embed_tokens, lm_head")


class Quantization(Block):
    """Quantization of the frozen base model under qlora."""

    format: Literal["nf4", "fp4", "int8"] = Field(default="nf4", description="Format of a block of values")
    block_size: Annotated[int, Field(ge=1, le=BLOCK)] = Field(default=64, description="Values that share one scale")
    double_quant: bool = Field(default=True, description="Scales are quantised again")


class Training(Block):
    """Settings of the training: what one optimizer step computes, and in which formats."""

    method: Literal["full", "lora", "qlora"] = Field(default="full", description="What is trained")
    seq_len: Length = Field(description="Tokens of one sequence, before cp splits it")
    micro_batch_size: Sequences = Field(default=1, description="Sequences of one microbatch, per data-parallel rank")
    images: Annotated[int, Field(ge=0, le=BATCH)] | None = Field(
        default=None, description="Images (InternVL: tiles) in each sequence, for a model with a vision tower; "
        "their tokens are part of seq_len; 0: sequences are text, and the tower does not run"
    )
    image_height: Side | None = Field(
        default=None, description="Pixels of an image from top to bottom, as the model's processor hands it on; for a "
        "model that takes images of any size"
    )
    image_width: Side | None = Field(
        default=None, description="Pixels of an image from left to right; left out: those of image_height"
    )
    global_batch_size: Sequences | None = Field(
        default=None, description="Sequences per optimizer step; left out: one microbatch on every data-parallel rank"
    )
    num_tokens: Many | None = Field(default=None, description="Length of the whole run in tokens, for its cost")
    num_samples: Many | None = Field(
        default=None, description="Length of the whole run in samples: sequences, pairs of dpo, prompts of grpo"
    )
    num_epochs: Annotated[float, Field(gt=0, le=EPOCHS)] | None = Field(
        default=None, description="Length of the whole run in passes over the data set; needs dataset_size"
    )
    dataset_size: Many | None = Field(default=None, description="Samples of the data set, for num_epochs")
    lengths: Annotated[
        Annotated[Literal["fixed", "packed"], WORD]
        | Annotated[Observed, Tag("<observed>")]
        | Annotated[Lengths, Tag("<lengths>")],
        Discriminator(_lengths_kind),
    ] = Field(default="fixed", description="Lengths of the sequences; packed: seq_len is that of a pack")
    packed_length: Length | None = Field(
        default=None, description="Length of packed sequences, in tokens; left out: one fills each pack"
    )
    sequence_parallel: Annotated[Annotated[Literal["auto"], WORD] | Annotated[bool, FLAG], BY_SHAPE] = Field(
        default="auto", description="Split norms and dropout over tp; auto: where tp > 1"
    )
    recompute: Annotated[
        Annotated[Literal["none", "full"], WORD] | Annotated[Names, LIST] | Annotated[Recompute, MAP], BY_SHAPE
    ] = Field(default="none", description="Activation checkpointing: none, full, a list of modules, or a mode")
    pipeline: Pipeline = Field(default=Pipeline(), description="Pipeline schedule and stages")
    loss: Literal["auto", "megatron", "te", "te_inplace", "hf", "hf_keep_logits", "masked_fp32", "masked", "liger",
                  "cut", "chunked", "causal", "flash", "flash_eager", "flash_entropy", "flash_entropy_eager",
                  "flash_padded", "flash_fp32", "policy_fp32", "policy_fp32_divided", "policy_fp32_entropy",
                  "fused_linear", "fused_lm_head", "log_probs", "top_k", "values", "fused_log_probs",
                  "preference_rows", "preference_rows_alone", "preference_odds", "preference_softmax",
                  "preference_softmax_alone", "preference_fused", "preference_fused_alone", "preference_whole",
                  "preference_whole_alone", "preference_fp32", "rewards", "kto_fused", "kto_fused_alone", "kto_whole",
                  "kto_whole_alone", "kto_rows", "kto_softmax", "kept_logits", "kept_logits_once",
                  "kept_logits_entropy", "kept_logits_reference"] = Field(
        default="auto", description="Whose loss code runs"
    )
    scored_tokens: Length | None = Field(
        default=None, description="Last tokens of a sequence that the loss scores; left out: all but the first"
    )
    logprob_chunk_size: Length | None = Field(
        default=None, description="Tokens of a chunk in which NeMo RL's workers compute log-probabilities; left out: "
        "all at once"
    )
    routing: Routing = Field(default="auto", description="How tokens fall on experts; auto: balanced, or as a "
                             "framework's own untrained router was measured")
    precision: Precision = Field(default=Precision(), description="Formats")
    optimizer: Optimizer = Field(default=Optimizer(), description="Optimizer")
    offload: Offload = Field(default=Offload(), description="What lies outside the device")
    frozen: Annotated[Names, Field(max_length=100)] = Field(
        default=(), description="Names or patterns of parameters and modules without gradient"
    )
    lora: Lora = Field(default=Lora(), description="Adapters, for the methods lora and qlora")
    quantization: Quantization = Field(default=Quantization(), description="The frozen base, for the method qlora")

    @model_validator(mode="after")
    def _packed(self) -> Training:
        if self.packed_length is not None and self.lengths != "packed":
            raise ValueError("packed_length: expected lengths: packed beside it")
        return self

    @model_validator(mode="after")
    def _one_length_of_the_run(self) -> Training:
        given = [name for name in ("num_tokens", "num_samples", "num_epochs") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: expected one of them, each is the length of the whole run")
        if self.num_epochs is not None and self.dataset_size is None:
            raise ValueError("num_epochs: expected dataset_size beside it, the samples of the data set")
        if self.dataset_size is not None and self.num_epochs is None:
            raise ValueError("dataset_size: expected num_epochs beside it")
        return self

    def run_steps(self, tokens: int, samples: int) -> int | None:
        """Optimizer steps of the whole run, rounded up, at `tokens` tokens and `samples` samples each.

        None if the scenario does not state the run's length.
        """
        if self.num_tokens is not None:
            return -(-self.num_tokens // tokens)
        if self.num_epochs is not None and self.dataset_size is not None:
            return ceil(Exact(str(self.num_epochs)) * self.dataset_size / samples)
        return None if self.num_samples is None else -(-self.num_samples // samples)

    @model_validator(mode="after")
    def _countable(self) -> Training:
        """Bounds the tokens of a microbatch, whose bytes and operations are counted in 64 bits."""
        if self.seq_len * self.micro_batch_size > MAX_TOKENS:
            factors = f"seq_len {self.seq_len} x micro_batch_size {self.micro_batch_size}"
            raise ValueError(f"expected at most {MAX_TOKENS} tokens in one microbatch, got {factors}")
        return self
