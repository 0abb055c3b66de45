"""Options that lower memory and leave the layout: each alone, or several at once on a layout that nearly fits.

[Note: several at once]
All combinations of options over all layouts are too many to try. So the layout nearest to fitting gets one option after
the other, what is on the device first, and keeps those that leave more memory, until it surely fits. What comes out was
simulated; that nothing does is no proof, so the nearest to fitting that came out is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError
from simcore.frameworks.registry import framework_adapter
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.recording.layer import PREFERENCE
from simcore.search.judge import Candidate, Refused, Sized, judged
from simcore.simulate import check

__all__ = ["alone", "losses", "together", "unmodelled"]

_FUSED: Final[Mapping[str, Any]] = {"training.optimizer.implementation": "fused"}
_LOSSES: Final = ("cut", "liger", "chunked", "te")
"""Losses that keep fewer logits, those that keep least first."""
_HOSTED: Final[tuple[Mapping[str, Any], ...]] = (
    {"training.offload.optimizer": "host"},
    {f"training.offload.{part}": "host" for part in ("params", "gradients", "optimizer")},
)
_RECOMPUTED: Final[Mapping[str, Any]] = {"training.recompute": "full"}
_ACTIVATIONS: Final[Mapping[str, Any]] = {**_RECOMPUTED, "training.offload.activations": "host"}
_NOT_YET: Final = "not yet: "
_LOSS: Final = "training.loss"
_HEAD: Final = ("framework", "framework_version", "framework_options", "implementation")
"""Keys of a candidate that choose its framework."""
_LAYOUT: Final = ("mesh.", "topology", "training.micro_batch_size", "training.pipeline")
"""Keys of a candidate that are no options."""
_COSTLY: Final = ("training.offload.", "training.recompute")
"""Options that take the most time."""
_PLAIN: Final[Mapping[str, Any]] = {"mesh": {}, "training.pipeline": {}}
"""A job of one rank, of which every framework that has a loss says so."""


def alone(base: Scenario, head: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Keys to try one by one: a step of the optimizer without copies of its own, a loss, states on the host.

    `head`: keys that choose the framework.
    """
    return (_FUSED, *losses(base, head)[:1], *_HOSTED)


def losses(base: Scenario, head: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Keys of other losses that keep fewer logits and that the framework has for the model, the leanest first."""
    if base.workload != "train" or base.training.loss in PREFERENCE:
        return ()
    return tuple({_LOSS: name} for name in _LOSSES if name != base.training.loss and _has(base, head, name))


def _has(base: Scenario, head: Mapping[str, Any], loss: str) -> bool:
    """False for a loss that is refused by itself, with one rank; one that is refused beside other keys may be tried."""
    try:
        report = check(changed(base, {**head, **_PLAIN, _LOSS: loss}))
    except InputError:
        return False
    return not any(_LOSS in row.where for row in report.problems)


def together(base: Scenario, nearest: Candidate, *, hosted: bool = True) -> tuple[Candidate, Sized] | None:
    """A layout with several options at once that surely fits, else the nearest to it, see [Note: several at once].

    `nearest`: keys of the layout to begin with; `hosted`: states and activations may lie on the host. None if no option
    leaves more memory.
    """
    (least,) = judged(base, [nearest])
    if not isinstance(least, Sized):
        return None
    head = {key: nearest[key] for key in _HEAD if key in nearest}
    options = (option.keys for option in framework_adapter(str(nearest.get("framework", base.framework))).memory_options
               if option.kind != "formats")
    best = dict(nearest)
    for keys in (_FUSED, *losses(base, head), *options, _RECOMPUTED, *((_ACTIVATIONS, *_HOSTED) if hosted else ())):
        tried = {**best, **keys}
        (answer,) = judged(base, [tried])
        if isinstance(answer, Sized) and answer.headroom_bytes > least.headroom_bytes:
            best, least = tried, answer
        if least.verdict == "fits":
            return _fewest_keys(base, best, least)
    return (best, least) if best != dict(nearest) else None


def unmodelled(base: Scenario, nearest: Candidate) -> tuple[str, ...]:
    """Options that a layout may have and that are not simulated there yet, each as its refusal names it."""
    answers = judged(base, [{**nearest, **keys} for keys in (_FUSED, _ACTIVATIONS, *_HOSTED)])
    return tuple(dict.fromkeys(one.message.removeprefix(_NOT_YET) for one in answers
                               if isinstance(one, Refused) and one.status == "not yet"))


def _fewest_keys(base: Scenario, candidate: dict[str, Any], sized: Sized) -> tuple[Candidate, Sized]:
    """A layout that surely fits without those of its options that it fits without, the costliest left out first."""
    options = [key for key in candidate if key not in _HEAD and not key.startswith(_LAYOUT)]
    for key in sorted(options, key=lambda key: not key.startswith(_COSTLY)):
        fewer = {one: value for one, value in candidate.items() if one != key}
        (answer,) = judged(base, [fewer])
        if isinstance(answer, Sized) and answer.verdict == "fits":
            candidate, sized = fewer, answer
    return candidate, sized
