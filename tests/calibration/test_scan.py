"""Our own scan: the recurrence it stands for, chunk by chunk."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.calibration.scan import chunked_scan

torch: Any = pytest.importorskip("torch")

BATCH, SEQ, HEADS, WIDTH, GROUPS, STATE, CHUNK = 2, 24, 4, 3, 2, 5, 8


def inputs() -> tuple[Any, ...]:
    torch.manual_seed(0)
    x = torch.randn(BATCH, SEQ, HEADS, WIDTH, dtype=torch.float64)
    dt = torch.rand(BATCH, SEQ, HEADS, dtype=torch.float64)
    a = -torch.rand(HEADS, dtype=torch.float64)
    b, c = (torch.randn(BATCH, SEQ, GROUPS, STATE, dtype=torch.float64) for _ in range(2))
    return x, dt, a, b, c


def recurrence(x: Any, dt: Any, a: Any, b: Any, c: Any) -> Any:
    """Token by token."""
    b, c = (part.repeat_interleave(HEADS // GROUPS, dim=2) for part in (b, c))
    state, out = torch.zeros(BATCH, HEADS, WIDTH, STATE, dtype=x.dtype), []
    for t in range(SEQ):
        given = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        state = state * (dt[:, t] * a).exp()[..., None, None] + given
        out.append((state * c[:, t, :, None]).sum(-1))
    return torch.stack(out, dim=1)


@pytest.mark.parametrize("chunk", [1, CHUNK, SEQ])
def test_chunks_give_what_the_recurrence_gives(chunk: int) -> None:
    assert torch.allclose(chunked_scan(torch, *inputs(), chunk=chunk), recurrence(*inputs()), atol=1e-5)


def test_so_do_its_gradients() -> None:
    grads = []
    for run in (lambda *parts: chunked_scan(torch, *parts, chunk=CHUNK), recurrence):
        parts = [part.requires_grad_() for part in inputs()]
        grads.append(torch.autograd.grad(run(*parts).square().sum(), parts))
    assert all(torch.allclose(one, two, rtol=1e-3, atol=1e-4) for one, two in zip(*grads, strict=True))


def test_an_earlier_token_hears_nothing_of_a_later_one() -> None:
    x, dt, a, b, c = inputs()
    before = chunked_scan(torch, x, dt, a, b, c, chunk=CHUNK)
    x[:, 13] += 1
    after = chunked_scan(torch, x, dt, a, b, c, chunk=CHUNK)
    assert torch.equal(before[:, :13], after[:, :13])
    assert not torch.allclose(before[:, 13:], after[:, 13:])
