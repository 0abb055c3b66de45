"""Switches whose effect is left out of the answer: told as not modelled where they are on, else as without effect."""

from __future__ import annotations

from collections.abc import Mapping

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_switches"]

_OFF = (None, False, 0, 1, "none", "None", "")
"""Values of a key that say what is simulated: one turn, no kind, off. True equals 1, and is told apart."""


def read_switches(reader: Reader, draft: Draft, switches: Mapping[str, str]) -> None:
    """Reads keys, each with what the answer leaves out where it is on."""
    for key, why in switches.items():
        said = reader.take(key)
        if said is not None and (said.value is True or said.value not in _OFF):
            draft.unmodelled(said, why)
        else:
            draft.idle(said, "off")
