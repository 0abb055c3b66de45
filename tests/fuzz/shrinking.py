"""Smaller inputs with the same fault: keys, arguments and pieces of files are left out while it persists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from fuzz.case import Input

__all__ = ["shrunk"]


def shrunk(given: Input, has_fault: Callable[[Input], bool], seconds: float = 10) -> Input:
    """The smallest that was found in so many seconds of the processor; greedy, larger pieces first."""
    end = time.process_time() + seconds
    smaller = True
    while smaller:
        smaller = False
        for attempt in _smaller(given):
            if time.process_time() > end:
                return given
            if has_fault(attempt):
                given, smaller = attempt, True
                break
    return given


def _smaller(given: Input) -> Iterator[Input]:
    for number in range(len(given.checks)):
        yield replace(given, checks=given.checks[:number] + given.checks[number + 1:])
    for number in range(len(given.arguments)):
        yield replace(given, arguments=given.arguments[:number] + given.arguments[number + 1:])
    for name, held in given.files.items():
        trees = _smaller_bytes(held) if isinstance(held, bytes) else _smaller_trees(held)
        for tree in trees:
            yield replace(given, files={**given.files, name: tree})


def _smaller_trees(value: Any) -> Iterator[Any]:
    """Without a key or an item, or with a simpler value; outer ones first."""
    if isinstance(value, dict):
        for key in value:
            yield {name: inner for name, inner in value.items() if name != key}
        for key, inner in value.items():
            yield from ({**value, key: simpler} for simpler in _smaller_trees(inner))
    elif isinstance(value, list):
        for number in range(len(value)):
            yield value[:number] + value[number + 1:]
        for number, inner in enumerate(value):
            yield from ([*value[:number], simpler, *value[number + 1:]] for simpler in _smaller_trees(inner))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (deepcopy(number) for number in (1, 2, value // 2) if 0 < number < value)
    elif isinstance(value, str) and len(value) > 40:
        yield value[: len(value) // 2]


def _smaller_bytes(content: bytes) -> Iterator[bytes]:
    """Without a half, a quarter, .. of its lines, then of its bytes if they are few."""
    lines = content.splitlines(keepends=True)
    size = len(lines) // 2
    while size:
        for start in range(0, len(lines), size):
            yield b"".join(lines[:start] + lines[start + size:])
        size //= 2
    if len(content) <= 400:
        for start in range(0, len(content), max(1, len(content) // 40)):
            yield content[:start] + content[start + max(1, len(content) // 40):]
