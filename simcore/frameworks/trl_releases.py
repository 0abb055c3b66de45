"""Releases of TRL whose GRPO is simulated, by what they do differently in a step.

[Note: what differs] Head and entropy: `operators/shared/pairs/kept_logits.py`, `operators/hf/chunked.py`. The policy's
own log-probabilities: v0.18.0 and v0.19.1 `trainer/grpo_trainer.py`:1132 and 1214 make them where sequences are trained
on twice or are older than an optimizer step, and never to correct vLLM's (`vllm_importance_sampling_correction` is from
0.23). v0.18.0 _compute_loss passes through the reference model within each microbatch; later ones once for all that
is generated. vLLM sleeps from 0.23 on, at level 1 up to 0.24 (v0.24.0:550), then at level 2. Weights go to a server
parameter by parameter (`update_named_param`), not packed. v0.18.0 lets vLLM choose the most tokens of a pass, and both
it and v0.19.1 count the sequences of one optimizer step (`max_num_seqs`). Neither sends weights under FSDP 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.operators.hf.chunked import LM_HEAD
from simcore.recording.layer import KEPT_ALONE, KEPT_ENTROPY, KEPT_ONCE, KEPT_REFERENCED

__all__ = ["NEWEST", "Release", "release_of"]

NEWEST: Final = "1.16.0"
_KEPT: Final = KEPT_ALONE[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release of TRL, `name`, see [Note: what differs].

    `loss`: value of `training.loss`; `refers_within`: the reference passes within a microbatch; `corrects`: vLLM's
    log-probabilities are corrected by the policy's own; `sleeps`: level at which vLLM sleeps, 0 never; `packs`: a
    server is sent packed weights; `limits`: a pass of vLLM has 4,096 tokens at most; `by_generation`: vLLM runs all
    that is generated at once, not as many as an optimizer step has; `splits`: weights are sent under FSDP 2 as well.
    """

    name: str
    loss: str
    refers_within: bool = False
    corrects: bool = True
    sleeps: int = 2
    packs: bool = False
    limits: bool = True
    by_generation: bool = True
    splits: bool = True

    def loss_beside(self, *, reference: bool) -> str:
        """Value of `training.loss` beside a reference model, or without one."""
        return KEPT_REFERENCED if reference and self.refers_within else self.loss

    def needs_scores(self, batch: int, generated: int, epochs: int) -> bool:
        """True if sequences' own log-probabilities are made whatever generates.

        `batch`: sequences of an optimizer step; `generated`: at once, each trained on `epochs` times.
        """
        if not self.corrects:
            return epochs > 1 or generated > batch
        return batch % (generated * epochs) != 0


_RELEASES: Final[Mapping[str, Release]] = {release.name: release for release in (
    Release(name="0.18.0", loss=_KEPT, refers_within=True, corrects=False, sleeps=0, limits=False, by_generation=False,
            splits=False),
    Release(name="0.19.1", loss=KEPT_ONCE, corrects=False, sleeps=0, by_generation=False, splits=False),
    Release(name="0.24.0", loss=KEPT_ENTROPY, sleeps=1),
    Release(name="0.27.2", loss=KEPT_ENTROPY),
    Release(name=NEWEST, loss=LM_HEAD, packs=True))}


def release_of(version: str) -> Release:
    """The release of `rl.version`."""
    return _RELEASES[NEWEST if version == "auto" else version]
