"""Sleep of OpenRLHF's models off the device: states of DeepSpeed's optimizers that a pass without gradients needs not.

[Note: sleep]
OpenRLHF 0.11.0 `utils/deepspeed/deepspeed_utils.py` offload_deepspeed_states: with `ds.enable_sleep` optimizer states,
parameters in fp32 and gradients leave for pinned memory of the host but for the time of `fit`; parameters in 16 bits
stay. Stage 3 (DeepSpeed 0.19.6 `runtime/zero/stage3.py` offload_states) drops the bucket of gradients, and releases
all parameters, the small ones that stay gathered too; its host buffers are kept once they are made. Stages 1 and 2
(`stage_1_and_2.py`) have no gradients between steps, and free host buffers when states come back. Nothing moves if the
optimizer is on the host. Measured: `tests/truth/probe_openrlhf_sleep.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Sleep", "sleep_of"]

_MOVED: Final = ("main_param", "opt_state", "main_grad")
_DROPPED: Final = ("reduce_scatter_input",)
_RELEASED: Final = ("unsharded_param",)


@dataclass(frozen=True, slots=True)
class Sleep:
    """Bytes by category that are not on the device asleep. `moved`: copied to the host; `dropped`: made anew.

    `released`: gathered parameters, which the next pass gathers again. `pinned`: bytes of host buffers that are kept
    while awake.
    """

    moved: Mapping[str, int]
    dropped: Mapping[str, int]
    released: Mapping[str, int]
    pinned: int


def sleep_of(rest: Mapping[str, int], kind: str) -> Sleep:
    """Sleep of a model that has `rest` on the device awake, in bytes by category; `kind`: as of `Summons.sleeps`."""
    moved, dropped, released = ({name: rest[name] for name in names if name in rest}
                                for names in (_MOVED, _DROPPED, _RELEASED))
    if kind == "states":
        return Sleep(moved, {}, {}, 0)
    return Sleep(moved, dropped, released, sum(moved.values()))
