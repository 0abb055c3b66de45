"""Weights on their way from the policy to vLLM, parameter by parameter as TRL's `_iter_named_params` has them.

[Note: sync_weights]
TRL 1.16.0 `generation/vllm_generation.py` sync_weights, `distributed.py`. Each parameter is whole for a moment, and put
into vLLM's own (load_weights copies it), in the type in which it rests: under ZeRO 3 it is gathered alone
(GatheredParameters), under FSDP 2 by `full_tensor`, under FSDP 1 with all of its unit (summon_full_params); otherwise
it is whole already. With adapters these are merged into the base in place, and taken out again behind it: of one
linear's product (PEFT 0.21.2 `tuners/lora/layer.py` get_delta_weight) and that times the scale, in the adapters' type.
Under ZeRO 3 all parameters are gathered for it at once.

[Note: packed]
To a server rank 0 broadcasts tensors that are collected until they reach 1 GiB, as their concatenation, of which two
take turns (vLLM `distributed/weight_transfer/packed_tensor.py`, DEFAULT_PACKED_BUFFER_SIZE_BYTES, _NUM_BUFFERS);
collected tensors that were gathered are there meanwhile. Its engines unpack what they receive from buffers of that
size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.frameworks.summons import Summons
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Placed, Plan
from simcore.rl.step.refit import Gather, Gathered, gathering_ns
from simcore.rl.trl.policy import summons_of
from simcore.timing.routes import Routes
from simcore.units import GIB, dtype_bytes

__all__ = ["packed", "sent_buffers", "synced", "tensors_of"]

_PACKED_BYTES: Final = GIB
_BUFFERS: Final = 2
_ADAPTER: Final = ".lora_"


def synced(scenario: Scenario, plan: Plan, routes: Routes) -> Gathered:
    """Sizes in bytes and time in ns of making all parameters whole on a rank, see [Note: sync_weights]."""
    has_adapters = scenario.training.method != "full"
    tensors = _owned(plan)
    base = [(placed, times) for placed, times in tensors if placed.spec.module != "adapter"]
    merging = _merging(plan) if has_adapters else 0
    summons = summons_of(scenario)
    calls = tuple(_calls(summons, plan, tensors if summons.whole_as else base))
    largest = max(_bytes(placed) for placed, _ in base)
    transient = _transient(summons, plan, tensors, adapted=has_adapters) if calls else 0
    return Gathered(transient + merging, largest, sum(times * _bytes(placed) for placed, times in base), calls,
                    gathering_ns(calls, routes))


def _owned(plan: Plan) -> list[tuple[Placed, int]]:
    """Parameters of the model, and how many there are of each."""
    return [(placed, count * placed.spec.copies) for kind, count in plan.kind_counts for placed in plan.kinds[kind]
            if placed.spec.is_owned and not placed.spec.is_buffer]


def tensors_of(plan: Plan) -> list[tuple[int, int]]:
    """(bytes, number) of parameters that vLLM is sent one by one, adapters merged."""
    return [(_bytes(placed), times) for placed, times in _owned(plan) if placed.spec.module != "adapter"]


def packed(num_bytes: int) -> list[tuple[int, int]]:
    """(bytes, number) of the broadcasts of `num_bytes` of packed weights."""
    full, last = divmod(num_bytes, _PACKED_BYTES)
    return [(_PACKED_BYTES, full), (last, 1)]


def _bytes(placed: Placed) -> int:
    """Bytes of one whole parameter in the type in which it rests; experts in one tensor are one."""
    return placed.spec.numel * dtype_bytes(placed.policy.at_rest.dtype)


def _calls(summons: Summons, plan: Plan, tensors: list[tuple[Placed, int]]) -> Iterator[Gather]:
    if not summons.gathers:
        return
    axes = sorted({unit.shard_axis for unit in plan.framework.units}) or ["dp_shard"]
    axis = max(axes, key=lambda name: plan.mesh.axis(name).size)
    if plan.mesh.axis(axis).size > 1:
        yield from (Gather(axis, placed.policy.at_rest.dtype, _bytes(placed), times) for placed, times in tensors)


def _transient(summons: Summons, plan: Plan, tensors: list[tuple[Placed, int]], *, adapted: bool) -> int:
    """Most bytes of whole parameters at once: of one, of a unit of FSDP 1, or of all."""
    if summons.whole_as and adapted:
        return sum(times * _bytes(placed) for placed, times in tensors)
    if summons.by_unit:
        units = ([plan.of_layer(layer)[number] for layer, numbers in unit.members for number in numbers]
                 for unit in plan.framework.units)
        return max(sum(_bytes(placed) * placed.spec.copies for placed in unit) for unit in units)
    return max(_bytes(placed) * placed.spec.copies for placed, _ in tensors)


def _merging(plan: Plan) -> int:
    """Bytes of the largest linear's product of adapters, and of that times the scale."""
    found = [2 * base.spec.numel * dtype_bytes(one.policy.at_rest.dtype) for kind in plan.kinds for one in kind
             if one.spec.module == "adapter" for base in kind
             if base.spec.module != "adapter" and base.spec.path and base.spec.path == _path(one)]
    return max(found, default=0)


def _path(adapter: Placed) -> str:
    """Path of the linear that an adapter belongs to."""
    return adapter.spec.path.split(_ADAPTER)[0]


def sent_buffers(weights: Gathered, *, packs: bool, sends: bool) -> dict[str, int]:
    """Bytes, under the key `buffer`, of what is broadcast to a server's engines, see [Note: packed].

    Releases that do not pack send the parameter itself, which an engine receives in a tensor of its own.
    """
    if not packs:
        return {} if sends else {"buffer": weights.largest}
    each = min(_PACKED_BYTES + weights.largest, weights.total)
    collected = each if sends and weights.calls else 0
    return {"buffer": _BUFFERS * (each + collected)}
