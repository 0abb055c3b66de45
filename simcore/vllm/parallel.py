"""Collectives of an engine's tensor parallelism: how often each is called, and its payload, to generate a batch.

[Note: collectives of an engine]
vLLM 0.25.1 (0.12.0 alike) `model_executor/layers/vocab_parallel_embedding.py` forward: an all-reduce of the embedded
tokens; `linear.py` RowParallelLinear, `fused_moe/runner/moe_runner.py`: an all-reduce of a block's output, of routed
and shared experts together; `mamba/mamba_mixer2.py` Mixer2RMSNormGated: of a single group that tp splits, an all-reduce
of the sums of squares in fp32.
`logits_processor.py` _gather_logits: an all-gather of the logits of a sequence's last token (CUDA's platform gathers to
all). Every token but the last passes the model once: prompts in passes of at most `max_num_batched_tokens`, each later
token in a pass with those of the other sequences. Prompts that the prefix cache has are not taken off. Payloads are
counted as rings send them; vLLM's custom all-reduce for small tensors in one node reads a part of them more often
(`distributed/device_communicators/custom_all_reduce.py`). Speculative decoding: passes are over the drafted tokens too,
as many fewer as tokens are accepted; the drafter embeds, runs its layers and makes logits for each drafted token, and
reads prompts once; Nemotron-H's gathers its projection (`models/nemotron_h_mtp.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simcore.models.blocks import Embedding, Mamba2
from simcore.units import dtype_bytes
from simcore.vllm.answers import Round
from simcore.vllm.drafter import Drafter
from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.weights import MODEL_DTYPE, layers_of, padded_rows

__all__ = ["Call", "calls", "prompt_calls"]


@dataclass(frozen=True, slots=True)
class Call:
    """Equal calls of one collective on each rank of an engine: their number, the payload of one, its format."""

    collective: str
    dtype: str
    num_bytes: int
    num_calls: int


@dataclass(frozen=True, slots=True)
class _Pass:
    """Equal forward passes: tokens of one, rows of logits that it makes, how often it runs, of the drafter or not."""

    tokens: int
    sequences: int
    times: int
    drafts: bool = False


def calls(engine: InferenceEngine, rounds: Sequence[Round], prompt: int) -> list[Call]:
    """Collectives of a rank for all rounds, from prompts of `prompt` tokens to the last token of the longest answer.

    `rounds`: sequences that are generated together, round after round. [] for an engine on one rank. See [Note:
    collectives of an engine].
    """
    if engine.tp == 1:
        return []
    return [call for each in rounds if each.prompts for one in _passes(engine, each, prompt)
            for call in _of_pass(engine, one)]


def prompt_calls(engine: InferenceEngine, sequences: int, tokens: int) -> list[Call]:
    """Collectives of a rank for passes over `sequences` prompts of `tokens` tokens each, without logits.

    [] for an engine on one rank.
    """
    if engine.tp == 1:
        return []
    full, last = divmod(sequences * tokens, engine.limits.tokens)
    return [call for one in (_Pass(engine.limits.tokens, 0, full), _Pass(last, 0, int(last > 0)))
            for call in _of_pass(engine, one)]


def _passes(engine: InferenceEngine, each: Round, prompt: int) -> Iterator[_Pass]:
    """Passes of one round: prompts, then one token of each sequence at a time; none if nothing is generated."""
    first = max(prompt, 1)  # a sequence without a prompt begins with a token
    if engine.max_model_len <= first:
        return  # there is no token to generate
    most = engine.limits.tokens
    if not engine.generation.chunked_prefill:
        most = max(1, most // first) * first  # whole prompts
    full, last = divmod(each.prompts * first - 1, most)
    # logits are made once for a prompt, in the pass that ends it: all are counted in the last pass of the prompts
    yield _Pass(most, 0, full)
    yield _Pass(last + 1, each.prompts, 1)
    drafter, made = engine.drafter, prompt - first - 1  # the last pass over prompts makes a token of each
    if drafter is not None:
        yield _Pass(most, 0, full, drafts=True)
        yield _Pass(last + 1, each.prompts, 1, drafts=True)
    for stage in each.stages:
        yield from _of_stage(stage.sequences, max(0, stage.passes + made), drafter)
        made = min(0, stage.passes + made)


def _of_stage(sequences: int, steps: int, drafter: Drafter | None) -> Iterator[_Pass]:
    """Passes that make `steps` tokens of each of `sequences` sequences."""
    if drafter is None:
        yield _Pass(sequences, sequences, steps)
        return
    times, rows = math.ceil(steps / (1 + drafter.accepted)), sequences * (1 + drafter.tokens)
    yield _Pass(rows, rows, times)
    yield _Pass(rows, sequences, times, drafts=True)
    yield _Pass(sequences, sequences, times * (drafter.tokens - 1), drafts=True)


def _of_drafter(engine: InferenceEngine, drafter: Drafter, one: _Pass) -> Iterator[Call]:
    hidden, width = drafter.kind.hidden, dtype_bytes(MODEL_DTYPE)
    yield Call("all_reduce", MODEL_DTYPE, one.tokens * hidden * width, one.times * (1 + len(drafter.branches)))
    if drafter.splits:
        yield Call("all_gather", MODEL_DTYPE, one.tokens * hidden * width, one.times)
    if one.sequences:
        yield _gathered_logits(engine, one)


def _gathered_logits(engine: InferenceEngine, one: _Pass) -> Call:
    rows = padded_rows(engine.architecture.vocab)
    return Call("all_gather", MODEL_DTYPE, one.sequences * rows * dtype_bytes(MODEL_DTYPE), one.times)


def _of_pass(engine: InferenceEngine, one: _Pass) -> Iterator[Call]:
    if one.drafts:
        assert engine.drafter is not None
        yield from _of_drafter(engine, engine.drafter, one)
        return
    width = dtype_bytes(MODEL_DTYPE)
    for _, kind in layers_of(engine.architecture):
        if isinstance(kind.block, Embedding):
            yield Call("all_reduce", MODEL_DTYPE, one.tokens * kind.hidden * width, one.times)
        for branch in kind.branches:
            yield Call("all_reduce", MODEL_DTYPE, one.tokens * kind.hidden * width, one.times)
            if isinstance(branch.block, Mamba2) and branch.block.num_groups == 1:
                yield Call("all_reduce", "fp32", one.tokens * dtype_bytes("fp32"), one.times)
    if one.sequences:
        yield _gathered_logits(engine, one)
