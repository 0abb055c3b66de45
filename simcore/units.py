"""Quantities: bytes and nanoseconds are `int`, and a quantity in a file carries its unit.

GB is 1e9 bytes, GiB is 2**30 bytes; they are never confused. Files may give either; sizes of memory and of messages are
shown to people in GiB by `format_bytes`, or by `in_gib` in columns and on axes whose head has the unit.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["DTYPE_BYTES", "GIB", "dtype_bytes", "format_bytes", "format_seconds", "in_gib", "packed_bytes",
           "parse_cublas", "parse_quantity"]

GIB: Final = 2**30

DTYPE_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}

_SCALE: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15} | {
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40
}
_TIME: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_QUANTITY: Final = re.compile(r"^\s*(-?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/%]+)\s*$")
_BITS: Final = re.compile(r"[kKMGT]i?(b|b/s|bps|bit|bit/s)")


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`; KeyError for an unknown dtype."""
    return DTYPE_BYTES[dtype]


def packed_bytes(numel: int, dtype: str) -> int:
    """Bytes of `numel` elements stored one after the other: in fp4 half a byte each, rounded up.

    Scales of a quantized format are not included. KeyError for an unknown `dtype`.
    """
    return -(-numel // 2) if dtype == "fp4" else numel * DTYPE_BYTES[dtype]


def parse_quantity(text: str, unit: str) -> float:
    """Number that a text with a unit gives: `"450 GB/s"` with `unit="B/s"` is 4.5e11, `"92%"` is 0.92.

    `unit` is one of B, B/s, FLOP/s, s, %, W, USD/h, GPU, SM. ValueError, with the expected unit, if the text has none
    or another one, or is negative.
    """
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"expected a number with the unit {unit} (such as {_example(unit)!r}), got {text!r}")
    number, suffix = float(match[1].replace("_", "")), match[2]
    if match[1].startswith("-"):
        raise ValueError(f"expected no negative quantity, got {text!r}")
    if unit == "s" and suffix in _TIME:
        return number * _TIME[suffix]
    if unit == "%" and suffix == "%":
        return number / 100
    if suffix.endswith(unit) and suffix[: -len(unit)] in _SCALE:
        return number * _SCALE[suffix[: -len(unit)]]
    raise ValueError(f"expected a quantity in {unit} (such as {_example(unit)!r}), got {text!r}{_slip(suffix, unit)}")


def _slip(given: str, unit: str) -> str:
    """Hint for a unit that is nearly right, such as bits for bytes."""
    if not unit.startswith("B"):
        return ""
    if _BITS.fullmatch(given):
        return ": b is a bit, and 8 Gb/s are 1 GB/s"
    if given.casefold().endswith(unit.casefold()):
        return ": GB is 1e9 bytes, GiB is 2**30, spelled so"
    return ""


def parse_cublas(text: str) -> int:
    """Bytes of cuBLAS workspace that the environment variable `CUBLAS_WORKSPACE_CONFIG` asks for.

    `text` is pairs of `:SIZE:COUNT` with sizes in KiB, such as `:4096:8`; ValueError for anything else.
    """
    if not re.fullmatch(r"(:[0-9]{1,7}:[0-9]{1,4})+", text):
        raise ValueError(f"expected pairs of :SIZE:COUNT with sizes in KiB, such as :4096:8, got {text!r}")
    return sum(1024 * int(size) * int(count) for size, count in re.findall(r":(\d+):(\d+)", text))


def _example(unit: str) -> str:
    return {"B": "80 GiB", "B/s": "450 GB/s", "FLOP/s": "989 TFLOP/s", "s": "5 us", "%": "92%"}.get(unit, f"1 {unit}")


def format_bytes(num_bytes: float) -> str:
    """Text of a number of bytes in GiB, MiB or KiB with two decimals, or in B, such as `1.50 GiB`."""
    for scale, unit in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def in_gib(num_bytes: float, digits: int = 2, *, signed: bool = False) -> str:
    """Number of GiB, without the unit, with as many digits after the point, so that points of a column are aligned.

    A small number is not shown as zero, but as `<0.01`. `signed`: a difference, with its sign, zero too.
    """
    least = 10.0**-digits
    if not signed and 0 < num_bytes < GIB * least / 2:
        return f"<{least:.{digits}f}"
    return f"{num_bytes / GIB:{'+' if signed else ''},.{digits}f}"


def format_seconds(seconds: float) -> str:
    """Text of a time in s, ms or us with three significant digits, such as `12.5 ms`; below 1 us in s."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"
