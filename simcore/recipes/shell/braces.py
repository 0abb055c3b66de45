"""Brace expansion of shells: `{a,b}` and `{1..8}` outside of quotes make several words of one."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["in_braces"]

_MOST: Final = 1_000
_MAX_DEPTH: Final = 8
_RANGE: Final = re.compile(r"(-?[0-9]{1,6})\.\.(-?[0-9]{1,6})(?:\.\.(-?[0-9]{1,6}))?")


def in_braces(raw: str, depth: int = 0) -> list[str]:
    """Words, as written, that a word stands for: itself where it has no braces to expand.

    A word that would become more than a thousand is left as it is, as are braces deep in one another.
    """
    if "{" not in raw or depth > _MAX_DEPTH:
        return [raw]
    closes = _pairs(raw)
    found = [""]
    at = 0
    while at < len(raw):
        end = _passed(raw, at)
        if (close := closes.get(at, 0)) > 0:
            parts = _parts(raw[at + 1:close], depth)
            if parts is not None:
                found = [head + part for head in found for part in parts]
                end = close + 1
                if len(found) > _MOST:
                    return [raw]
                at = end
                continue
        found = [head + raw[at:end] for head in found]
        at = end
    return found


def _parts(inner: str, depth: int) -> list[str] | None:
    """Alternatives between braces; None for braces that stay."""
    if range_ := _RANGE.fullmatch(inner):
        first, last, step = int(range_[1]), int(range_[2]), abs(int(range_[3] or 1)) or 1
        width = max((len(text) for text in range_.group(1, 2) if re.match(r"-?0[0-9]", text)), default=0)
        if abs(last - first) // step > _MOST:
            return None
        numbers = range(first, last + (1 if last >= first else -1), step if last >= first else -step)
        return [str(number).zfill(width) for number in numbers]
    parts, start, at, closes = list[str](), 0, 0, _pairs(inner)
    while at < len(inner):
        if inner[at] == ",":
            parts.append(inner[start:at])
            start = at = at + 1
        else:
            at = closes[at] + 1 if at in closes else _passed(inner, at)
    return [word for part in (*parts, inner[start:]) for word in in_braces(part, depth + 1)] if parts else None


def _pairs(raw: str) -> dict[int, int]:
    """Index of the brace that closes another, by the index of that."""
    opened, found, at = list[int](), dict[int, int](), 0
    while at < len(raw):
        if raw[at] == "{":
            opened.append(at)
        elif raw[at] == "}" and opened:
            found[opened.pop()] = at
        at = _passed(raw, at)
    return found


def _passed(raw: str, at: int) -> int:
    """Index behind a sign, a quoted text, or an expansion."""
    if raw[at] == "\\":
        return min(at + 2, len(raw))
    if raw[at] in "'\"`":
        end = at + 1
        while end < len(raw) and raw[end] != raw[at]:
            end += 2 if raw[end] == "\\" and raw[at] != "'" else 1
        return min(end + 1, len(raw))
    if raw[at] == "$" and raw[at + 1:at + 2] in ("{", "("):
        opens = raw[at + 1]
        closes = "}" if opens == "{" else ")"
        inside, at = 0, at + 1
        while at < len(raw):
            inside += (raw[at] == opens) - (raw[at] == closes)
            at = at + 1 if raw[at] in (opens, closes) else _passed(raw, at)
            if not inside:
                return at
        return len(raw)
    return at + 1
