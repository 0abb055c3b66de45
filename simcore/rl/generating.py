"""Generation of one step by one engine: which sequences it decodes together, for how long, and what its ranks send."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from simcore.errors import InputError, Problem
from simcore.hardware.topology import Link
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.results.report import Assumption
from simcore.rl.step.traffic import Sent, engine_ns, of_engine
from simcore.vllm.answers import Round, alike, steady, varied
from simcore.vllm.decode import decode_seconds
from simcore.vllm.parallel import calls
from simcore.vllm.passes import HOST_PASS_S, HOST_SEQUENCE_S
from simcore.vllm.prefill import products_rate, prompt_seconds, used_elements
from simcore.vllm.protocol import InferenceEngine

__all__ = ["check_ahead", "check_lengths", "generate_ns", "rounds_of", "sent_by_engine", "told_of_lengths"]


def check_ahead(scenario: Scenario, rl: Rl) -> None:
    """Raises InputError for steps ahead of a policy that waits for each."""
    if rl.steps_ahead > 1 and not rl.asynchronous:
        raise InputError(Problem(scenario.where("rl", "steps_ahead"), "steps_ahead: changes nothing where engines wait "
                                 "for the policy; expected rl.asynchronous: true"))


def check_lengths(scenario: Scenario, rl: Rl, engine: InferenceEngine) -> None:
    """Raises InputError for a prompt that fills a sequence, and for a mean outside of the prompt and the longest."""
    longest = engine.max_model_len
    if rl.prompt_tokens >= longest:
        raise InputError(Problem(scenario.where("rl", "prompt_tokens"), f"prompt_tokens: expected fewer than the "
                                 f"{longest:,} tokens of a sequence, got {rl.prompt_tokens:,}"))
    if rl.mean_tokens is not None and not rl.prompt_tokens < rl.mean_tokens <= longest:
        raise InputError(Problem(scenario.where("rl", "mean_tokens"), f"mean_tokens: expected more than the "
                                 f"{rl.prompt_tokens:,} tokens of a prompt and at most the {longest:,} of the longest "
                                 f"sequence, got {rl.mean_tokens:,}"))


def rounds_of(engine: InferenceEngine, rl: Rl, sequences: int) -> list[Round]:
    """Rounds of `sequences` sequences: as many together as limits and cache allow, all alike or of several lengths.

    Engines that may be several steps ahead are never without sequences of the next one.
    """
    longest, mean = engine.max_model_len, rl.mean_tokens or engine.max_model_len
    fit = engine.cache.concurrency(mean)
    if rl.steps_ahead > 1:
        together = min(sequences * rl.steps_ahead, engine.limits.seqs, max(1, math.floor(fit)))
        return steady(sequences, together, rl.prompt_tokens, mean, longest)
    if mean < longest:
        return varied(sequences, engine.limits.seqs, math.floor(fit * mean), rl.prompt_tokens, mean, longest)
    full, remainder = divmod(sequences, most := max(1, min(engine.limits.seqs, math.floor(fit))))
    return alike([most] * full + [remainder] * (remainder > 0), rl.prompt_tokens, longest)


def generate_ns(engine: InferenceEngine, rl: Rl, rounds: Sequence[Round], link: Link) -> int:
    """Time in ns in which one engine reads prompts and decodes all rounds; its ranks reach each other over `link`."""
    stages = Counter(stage for one in rounds for stage in one.stages)
    seconds = sum(count * decode_seconds(engine, stage) for stage, count in stages.items())
    seconds += prompt_seconds(engine, sum(one.prompts for one in rounds), rl.prompt_tokens)
    seconds += 2 * used_elements(engine) * sum(one.again for one in rounds) / products_rate(engine)
    return round(1e9 * seconds) + engine_ns(calls(engine, rounds, rl.prompt_tokens), engine.tp, link)


def sent_by_engine(engine: InferenceEngine, rl: Rl, rounds: Sequence[Round], link: Link) -> Iterator[Sent]:
    """Collectives of an engine's ranks, over `link`."""
    return of_engine(calls(engine, rounds, rl.prompt_tokens), engine.tp, link)


def told_of_lengths(rl: Rl, engine: InferenceEngine, trained: int) -> list[Assumption]:
    """Assumptions on lengths of answers and on the time of a pass; `trained`: tokens of a sequence in training."""
    longest = engine.max_model_len
    told = Assumption(what="generation", value=f"every sequence goes from {rl.prompt_tokens:,} to {longest:,} tokens",
                      kind="assumed", source="prompt_tokens and max_model_len; no answer ends early")
    if rl.mean_tokens is not None and rl.mean_tokens < longest:
        told = Assumption(what="generation", value=f"sequences have {rl.mean_tokens:,} tokens in the mean, their "
                          f"density is exponential, and the longest has {longest:,}", kind="assumed",
                          source="rl.mean_tokens; see simcore/vllm/answers.py")
    host = f"{HOST_PASS_S * 1e3:g} ms a pass and {HOST_SEQUENCE_S * 1e6:g} us a sequence"
    apart = [] if longest == trained else [Assumption(
        what="trained sequences", value=f"{trained:,} tokens each, generated up to {longest:,}", kind="assumed",
        source="training.seq_len beside generation.max_model_len: memory and time of training are those of seq_len")]
    return [told, *apart, Assumption(what="host of the engine", value=host, kind="calibrated",
                             source="published times of a token, see simcore/vllm/passes.py")]
