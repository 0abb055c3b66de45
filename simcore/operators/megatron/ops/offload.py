"""A module whose saved tensors wait on the host ([Note: modules on the host] in `recording/offload_groups.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Tape, Tensor

__all__ = ["offloaded"]


def offloaded(c: Context, name: str, x: Tensor, run: Callable[[Tensor], Tensor], release: Sequence[Tensor] = (),
              behind: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Output of `run(x)`, the module `name`; `release`: tensors that are emptied when it has run, if it leaves.

    `behind`: what is run on the output before the module's tensors leave; its output is returned. Only these two calls
    where nothing of the module leaves.
    """
    groups = c.tape.groups
    if groups is None or name not in groups.asked.modules or c.inside or c.tape.no_grad:
        return behind(run(x)) if behind else run(x)
    group = groups.begin(name)

    def start(_tape: Tape, grads: Grads, _saved: Saved) -> Grads:
        groups.start_backward(group)
        return grads

    def end(_tape: Tape, grads: Grads, _saved: Saved) -> Grads:
        groups.commit_backward(group)
        return grads

    begun = Tensor(x.storage, x.shape, x.dtype)
    c.node(begun, (x,), (), start)
    out = run(begun)
    groups.now = None
    if behind is not None:
        out = behind(out)
    done = Tensor(out.storage, out.shape, out.dtype)
    c.node(done, (out,), (), end)
    groups.commit(group, release)
    return done
