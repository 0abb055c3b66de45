"""ASCII replacements of signs that a terminal or pipe cannot represent, because its encoding is not UTF-8."""

from __future__ import annotations

import codecs
from io import TextIOWrapper
from typing import Final

__all__ = ["LEVELS", "replace_signs"]

LEVELS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
"""Eight heights of a block, the lowest first."""

_ASCII: Final = dict(zip(LEVELS, "_.:-=+*#", strict=True)) | {
    "\u2593": "+", "\u2591": ".", "\u2502": "|", "\u2500": "-", "\u251c": "|", "\u2514": "`", "\u2501": "-",
    "\u00d7": "x", "\u2013": "-", "\u2212": "-", "\u2026": "...", "\u2018": "'", "\u2019": "'", "\u201c": '"',
    "\u201d": '"', "\u00b7": "-"}


def replace_signs(*streams: object) -> None:
    """Makes text streams print ASCII for signs that their encoding lacks.

    Our own signs get a look-alike, all others a question mark. Objects that are not text streams are left alone.
    """
    codecs.register_error("rankscope", _replaced)
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="rankscope")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(sign, "?") for sign in error.object[error.start : error.end]), error.end
