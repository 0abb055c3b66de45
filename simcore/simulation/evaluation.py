"""Evaluation between training steps: forward passes without gradients beside everything that the training holds.

[Note: what is counted]
The training's job is lowered with the evaluation's sizes, forward passes alone, under torch.no_grad(): nothing is kept
for backward, layers are not replayed, and the framework's hooks gather as usual. Parameters, optimizer states and
gradient buffers that survive a step are there. Kept logits: `frameworks/common/afterwards.py`, [Note: the Trainer's
evaluation]; labels beside them are not counted, and their gathers take no time. Generation: a pass over the prompt that
fills the cache, then one pass for each token, in which a layer's keys are concatenated anew (transformers 5.23
`cache_utils.py`, DynamicLayer.update); masks, positions, and new keys beside their copy in the cache are not counted.
Recurrent states of Mamba-2 are fp32, its last inputs in the compute dtype (LinearAttentionLayer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simcore.errors import InputError, NotYet, Problem
from simcore.frameworks.registry import hooks_of
from simcore.inputs.bounds import TOKENS
from simcore.inputs.evaluation import Evaluation
from simcore.inputs.scenario import Scenario
from simcore.memory.ledger import balance, running
from simcore.models.blocks import Attention, GatedDeltaNet, Mamba2
from simcore.pipeline.schedule import actions
from simcore.placement.plan import Plan
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.results.report import HostPhase, Report
from simcore.results.verdict import verdict_of
from simcore.simulation.simulation import Simulation, placed_simulation
from simcore.timing.step import forward_ns
from simcore.units import dtype_bytes

__all__ = ["Generated", "LoweredPasses", "evaluated", "generated", "lowered_passes"]

_WRITTEN: Final = 2
"""Passes that are simulated: all after the first take as long as the second."""
_FP32: Final = 4


def evaluated(simulation: Simulation, report: Report, resting: Mapping[str, int]) -> tuple[HostPhase, ...]:
    """Phases "evaluation" and, if tokens are generated, "generate"; () where the scenario asks for neither.

    `report`: of the training step, with a peak of each class of ranks. `resting`: bytes by owner that stay on the host.
    Raises InputError, IllegalLayout and NotYet as the framework refuses the evaluation's sizes.
    """
    loop, asked = simulation.framework.afterwards.evaluation, simulation.job.scenario.evaluation
    if loop is None or asked is None:
        return ()
    phases = [_advised(_passes, simulation, report, resting, asked)]
    if asked.generate_tokens:
        phases.append(_advised(_generation, simulation, report, resting, asked))
    return tuple(phases)


_Phase = Callable[[Simulation, Report, Mapping[str, int], Evaluation], HostPhase]


def _advised(made: _Phase, simulation: Simulation, report: Report, resting: Mapping[str, int],
             asked: Evaluation) -> HostPhase:
    """The phase, with the smallest tried change under which it fits, if it does not."""
    phase = made(simulation, report, resting, asked)
    if phase.device_verdict == phase.host_verdict == "fits":
        return phase
    for keys in _changes(simulation, asked):
        tried = made(simulation, report, resting, asked.model_copy(update=keys))
        if tried.device_verdict == tried.host_verdict == "fits":
            return phase.model_copy(update={"change": {f"evaluation.{key}": value for key, value in keys.items()}})
    return phase


def _changes(simulation: Simulation, asked: Evaluation) -> Iterator[dict[str, Any]]:
    """Logits to the host after each pass, smaller passes, both, no logits; as far as the loop has them."""
    loop, size = simulation.framework.afterwards.evaluation, _batch(simulation, asked)
    assert loop is not None
    smaller = [] if not loop.micro_batch else [size >> by for by in range(1, size.bit_length())]
    if asked.keep_logits and asked.accumulation_steps != 1:
        yield {"accumulation_steps": 1}
    yield from ({"micro_batch_size": one} for one in smaller)
    if asked.keep_logits:
        yield from ({"accumulation_steps": 1, "micro_batch_size": one} for one in smaller)
        yield {"keep_logits": False, "accumulation_steps": None}


# ---- the job of a pass -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class LoweredPasses:
    """Passes of one micro-batch size and length: one program of `_WRITTEN` passes for each class of ranks."""

    simulation: Simulation
    programs: tuple[Program, ...]

    def ns(self, count: int) -> int:
        """Duration in ns of `count` passes in a row, until the last rank ends."""
        simulation = self.simulation
        single = [_program(simulation, plan, 1) for plan in simulation.plans]
        first, both = (forward_ns(programs, simulation.classes, simulation.routes, simulation.framework)
                       for programs in (single, self.programs))
        return first + (count - 1) * (both - first)


def _batch(simulation: Simulation, asked: Evaluation) -> int:
    loop = simulation.framework.afterwards.evaluation
    training = simulation.job.scenario.training
    return asked.micro_batch_size or (loop.micro_batch if loop else 0) or training.micro_batch_size


def lowered_passes(simulation: Simulation, batch: int, seq_len: int, key: str = "evaluation") -> LoweredPasses:
    """Passes without gradients of `batch` sequences of `seq_len` tokens. `key`: scenario's block that asks for them.

    Raises InputError, IllegalLayout and NotYet as the framework refuses these sizes.
    """
    passing = placed_simulation(_passing(simulation.job.scenario, batch, seq_len, key))
    return LoweredPasses(passing, tuple(_program(passing, plan, _WRITTEN) for plan in passing.plans))


def _passing(scenario: Scenario, batch: int, seq_len: int, key: str) -> Scenario:
    """The training's scenario with other sizes, and without what only backward needs."""
    if batch * seq_len > TOKENS:
        told = f"expected at most {TOKENS} tokens in one pass, got seq_len {seq_len} x micro_batch_size {batch}"
        raise InputError(Problem(scenario.where(key), f"{key}: {told}"))
    offload = scenario.training.offload.model_copy(update={"activations": "none"})
    num = batch * scenario.mesh.dp_replicate * scenario.mesh.dp_shard * max(scenario.mesh.pp, 1)
    training = scenario.training.model_copy(update={
        "micro_batch_size": batch, "seq_len": seq_len, "global_batch_size": num, "recompute": "none",
        "lengths": "fixed", "packed_length": None, "offload": offload})
    return scenario.model_copy(update={"training": training, "evaluation": None})


def _program(simulation: Simulation, plan: Plan, count: int) -> Program:
    order = tuple(action for action in actions(simulation.framework.schedule, plan.stage, count) if action.forward)
    workload = replace(simulation.workload(plan), no_grad=True)
    return lower(plan, workload, order, hooks_of(simulation.framework), updates=False)


# ---- passes with their loss ------------------------------------------------------------------------------------------
def _passes(simulation: Simulation, report: Report, resting: Mapping[str, int], asked: Evaluation) -> HostPhase:
    training = simulation.job.scenario.training
    seq_len = asked.seq_len or training.seq_len
    lowered = lowered_passes(simulation, _batch(simulation, asked), seq_len)
    width, per_rank = _width(simulation), _batch(simulation, asked)
    num = -(-(asked.sequences or per_rank * width) // (per_rank * width))
    kept = _kept(simulation, asked, per_rank * seq_len, num) if asked.keep_logits else _Kept(0, 0, 0)
    tops = []
    for program in lowered.programs:
        peak = balance(program)
        inside = peak.peak_bytes + kept.beside, {**peak.by_category, "kept logits": kept.beside}
        after = peak.end_bytes + kept.after, {"kept logits": kept.after, "at rest": peak.end_bytes}
        tops.append(max(inside, after, key=lambda top: top[0]))
    return _phase("evaluation", simulation, report, tops, {**resting, "kept logits": kept.host},
                  None if simulation.timing is None else lowered.ns(num))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Bytes of kept logits: beside a pass on the device, after the last one, and on the host of a node."""

    beside: int
    after: int
    host: int


def _kept(simulation: Simulation, asked: Evaluation, tokens: int, num: int) -> _Kept:
    """Logits of all ranks and passes, on every rank.

    `tokens`: of a rank's pass; `num`: passes. A variable holds the last pass's logits beside those of all passes, from
    the third pass on (before, they are the same tensor).
    """
    loop, width = simulation.framework.afterwards.evaluation, _width(simulation)
    assert loop is not None
    own = tokens * simulation.job.graph.architecture.vocab
    size, steps = own * dtype_bytes(loop.logits), min(num, asked.accumulation_steps or num)
    one = size * width
    beside = (steps - 1) * one + (one if steps > 2 else 0)
    gathering = steps * one + (size if width > 1 else 0)
    concatenating = 2 * steps * one if steps > 1 else one
    chunk, whole = steps * own * width * _FP32, num * own * width * _FP32
    on_host = whole + (whole if num > steps else chunk // 2 if dtype_bytes(loop.logits) < _FP32 else 0)
    return _Kept(beside, max(gathering, concatenating), on_host * _ranks_per_host(simulation))


def _width(simulation: Simulation) -> int:
    """Ranks that evaluate different sequences."""
    return simulation.job.mesh.dp_replicate * simulation.job.mesh.dp_shard


def _ranks_per_host(simulation: Simulation) -> int:
    return min(simulation.topology.gpus_per_host, simulation.job.mesh.size)


# ---- generation ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens that the trained model itself generates: bytes on each class of ranks, and time of one round in ns.

    `filled`: most bytes while prompts are read; `cached`: while the last token is made; `states`, `full`: of keys and
    values in either. All else that the training holds is among them: `rest`. `ns`: None where nothing is timed.
    """

    rest: tuple[int, ...]
    filled: tuple[int, ...]
    cached: tuple[int, ...]
    states: int
    full: int
    ns: int | None


def generated(simulation: Simulation, batch: int, prompt: int, new: int, key: str = "evaluation", *,
              timed: bool = True) -> Generated:
    """Generation of `new` tokens behind `prompt` tokens of `batch` sequences by transformers' generate.

    `key`: scenario's block that asks for them. Raises as `lowered_passes`, and NotYet for layers whose cache is not
    known.
    """
    prefill, token = (lowered_passes(simulation, batch, length, key) for length in (prompt, 1))
    states, longest = _cache(simulation, batch, prompt), _longest_key(simulation, batch, prompt + new)
    full = _cache(simulation, batch, prompt + new)
    sampled = batch * simulation.job.graph.architecture.vocab * _FP32
    ns = _generation_ns(simulation, new, (prefill, token), (states + full) // 2) if timed else None
    return Generated(tuple(_at_rest(program) for program in token.programs),
                     tuple(_before_head(program) + states for program in prefill.programs),
                     tuple(balance(program).peak_bytes + full + longest + sampled for program in token.programs),
                     states, full, ns)


def _generation(simulation: Simulation, report: Report, resting: Mapping[str, int], asked: Evaluation) -> HostPhase:
    prompt, batch = asked.seq_len or simulation.job.scenario.training.seq_len, _batch(simulation, asked)
    found = generated(simulation, batch, prompt, asked.generate_tokens, timed=simulation.timing is not None)
    states, full = found.states, found.full
    tops = [max((filled, {"kv_cache": states, "pass over the prompt": filled - states}),
                (cached, {"kv_cache": full, "pass of a token": cached - full}), key=lambda top: top[0])
            for filled, cached in zip(found.filled, found.cached, strict=True)]
    num = -(-(asked.sequences or 1) // (batch * _width(simulation)))
    return _phase("generate", simulation, report, tops, resting, None if found.ns is None else num * found.ns)


def _generation_ns(simulation: Simulation, new: int, passes: tuple[LoweredPasses, LoweredPasses], read: int) -> int:
    """Duration in ns of one round: over the prompt and over each new token, which reads `read` bytes of cache."""
    prefill, token = passes
    rate = simulation.topology.device.memory_bandwidth.si * simulation.topology.efficiency.kernels.copy_.memory.si
    each = token.ns(_WRITTEN) // _WRITTEN + round(read / rate * 1e9)
    return prefill.ns(1) + new * each


def _cache(simulation: Simulation, sequences: int, tokens: int) -> int:
    """Bytes of keys, values and recurrent states of that many sequences, over all layers."""
    if simulation.framework.options.widens_at is not None:
        raise NotYet(Problem(simulation.job.scenario.where("evaluation", "generate_tokens"), "not yet: generation with "
                             "keys in fp32 in some layers, where packed linears put out what they are given"))
    width, total, key = dtype_bytes(simulation.framework.compute_dtype), 0, _key_width(simulation)
    for layer in simulation.job.graph.layers:
        for branch in simulation.job.graph.kinds[layer.kind].branches:
            block = branch.block
            if isinstance(block, Attention):
                total += (key + width) * block.kv_size * (min(tokens, block.window) if block.window else tokens)
            elif isinstance(block, Mamba2):
                total += block.conv_dim * block.conv_kernel * width
                total += block.num_heads * block.head_dim * block.state * _FP32
            elif isinstance(block, GatedDeltaNet):
                total += block.conv_dim * block.conv_kernel * width
                total += block.num_value_heads * block.key_dim * block.value_dim * _FP32
            elif "ttention" in type(block).__name__:
                raise NotYet(Problem(simulation.job.scenario.where("evaluation", "generate_tokens"), "not yet: "
                                     "generation with latent attention"))
    return sequences * total


def _longest_key(simulation: Simulation, sequences: int, tokens: int) -> int:
    """Bytes of one layer's keys, which are there twice while a token's are appended."""
    sizes = (branch.block.kv_size for kind in simulation.job.graph.kinds for branch in kind.branches
             if isinstance(branch.block, Attention))
    return sequences * tokens * max(sizes, default=0) * _key_width(simulation)


def _key_width(simulation: Simulation) -> int:
    """Bytes of one element of a cached key: rotated in the type of the model's stream, fp32 under autocast."""
    return dtype_bytes(simulation.framework.options.hidden or simulation.framework.compute_dtype)


def _at_rest(program: Program) -> int:
    """Bytes that are allocated before the first pass."""
    first = int(np.argmax(program.phase != Phase.BUILD))
    return int(running(program)[first - 1]) if first else 0


def _before_head(program: Program) -> int:
    """Most bytes before the head, which makes logits of the last position alone (logits_to_keep)."""
    layers = np.where(program.phase == Phase.FORWARD, program.outline.spread(3), -1)
    head = next((number for number, path in enumerate(program.layer_paths) if path == "lm_head"), None)
    bytes_after = running(program)
    ends = np.flatnonzero(layers == head) if head is not None else np.zeros(0, dtype=np.int64)
    return int(bytes_after[:int(ends[0])].max() if len(ends) else bytes_after.max())


# ---- the phase -------------------------------------------------------------------------------------------------------
def _phase(name: str, simulation: Simulation, report: Report, tops: Sequence[tuple[int, dict[str, int]]],
           on_host: Mapping[str, int], ns: int | None) -> HostPhase:
    """The phase of the fullest rank. `tops`: (allocated bytes, by category) of each class."""
    room, host_bytes = int(simulation.topology.node.host_memory), sum(on_host.values())
    loop = simulation.framework.afterwards.evaluation
    needed = [simulation.needed(allocated).plus(sum(rank.peak.outside.values() if rank.peak else ()))
              for (allocated, _), rank in zip(tops, report.ranks, strict=True)]
    fullest = max(range(len(needed)), key=lambda number: needed[number].middle)
    held = sorted(tops[fullest][1].items(), key=lambda item: -item[1])
    return HostPhase.model_validate({
        "phase": name, "host_bytes": host_bytes, "device_bytes": needed[fullest].middle,
        "seconds": None if ns is None else ns / 1e9,
        "host_verdict": "fits" if host_bytes <= room else "oom",
        "device_verdict": verdict_of((one.band for one in needed), simulation.limit_bytes()),
        "by_owner": {owner: size for owner, size in on_host.items() if size},
        "by_category": {category: size for category, size in held if size}, "source": loop.source if loop else ""})
