"""Contents of ZeRO-3's gathered parameters at every call of a module, as this engine's hooks have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import small
from simcore.frameworks.deepspeed.experts.joint_gathers import by_ranks
from simcore.frameworks.deepspeed.zero3_hooks import Zero3Hooks


def fetched(make: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *,
            of: Callable[[Zero3Hooks], bool] = lambda _: True) -> list[list[int]]:
    """Elements there or on their way, parameters not asked for yet and bytes of flat buffers after each call.

    `make` makes the program whose calls these are; `of`: true for the engine whose calls are wanted.
    """
    found: list[list[int]] = []
    ahead = Zero3Hooks._fetch_ahead

    def noted(strategy: Zero3Hooks) -> None:
        ahead(strategy)
        if not of(strategy):
            return
        flying = list({id(group): group for group in strategy.coming.values()}.values())
        asked_later = [keys for keys, _, _ in strategy.flat.kept] + [keys for keys, _ in strategy.joint.kept]
        buffers = [sum(map(strategy._whole, keys)) for group in flying for _, keys in by_ranks(strategy.plan, group)
                   if len(keys) > 1]
        found.append([sum(strategy.elements[key] for key in (*strategy.there, *strategy.coming)),
                      len(set(strategy.coming).union(*asked_later)),
                      sum(buffers) + sum(num_bytes for *_, num_bytes in strategy.flat.kept)])

    monkeypatch.setattr(Zero3Hooks, "_fetch_ahead", noted)
    small.forget_outlines()
    make()
    return found
