"""A number in a topology file: its unit, its reliability, and its source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from simcore.errors import InputError, Problem
from simcore.inputs.bounds import QUANTITIES
from simcore.inputs.document import Document
from simcore.units import parse_quantity

__all__ = ["Bytes", "Duration", "FlopRate", "Frozen", "GpuCount", "Power", "Price", "Quantity", "Rate", "Share",
           "SmCount", "read_values"]

_DATE: Final = re.compile(r"20\d\d-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
_MESSAGES: Final = {"extra_forbidden": "unknown key", "missing": "is missing"}


class Frozen(BaseModel):
    """Base class for parts of a file: immutable, hashable, and refusing unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Quantity(Frozen):
    """A number with a unit, its reliability and its source.

    In a file `"450 GB/s"`, or `{value: "450 GB/s", kind: datasheet, source: "..."}`. `kind` is datasheet: the vendor
    says so; measured: a named source measured it; fitted: calibrated, `source` names the measured runs; assumed: none
    of these, `source` says why. Zero (except of a `Duration`), another unit and values outside `bounds.QUANTITIES` are
    refused.
    """

    unit: ClassVar[str]
    value: str
    kind: Literal["datasheet", "measured", "fitted", "assumed"] = "assumed"
    source: str = Field("written in the topology file", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _accept_plain(cls, data: Any) -> Any:
        return data if isinstance(data, (dict, Quantity)) else {"value": data}

    @field_validator("value", mode="before")
    @classmethod
    def _in_range(cls, text: Any) -> Any:
        number, (least, most) = parse_quantity(text, cls.unit), QUANTITIES[cls.unit]
        if number < least <= 0 or number <= 0 < least or (number > most and cls.unit == "%"):
            raise ValueError(f"must be more than zero{' and at most 100%' if cls.unit == '%' else ''}, got {text!r}")
        if not least <= number <= most:
            raise ValueError(f"must be from {least:g} to {most:g} {cls.unit}, got {text!r}")
        return text

    @cached_property
    def si(self) -> float:
        """Value in the base unit: bytes, bytes/s, FLOP/s, seconds, W, USD/h or a count.

        A share is from 0 to 1.
        """
        return parse_quantity(self.value, self.unit)

    def __int__(self) -> int:
        return round(self.si)


class Bytes(Quantity):
    """Size of a memory, such as `80 GiB`."""

    unit = "B"


class Rate(Quantity):
    """Bandwidth of a link or a memory, one way, such as `450 GB/s`."""

    unit = "B/s"


class FlopRate(Quantity):
    """Floating-point operations per second of a GPU; a multiply-add counts as two."""

    unit = "FLOP/s"


class Share(Quantity):
    """Share of a peak, more than 0 and at most 100%, such as `92%`."""

    unit = "%"


class Duration(Quantity):
    """A latency or another short time, such as `5 us`; zero is allowed."""

    unit = "s"


class GpuCount(Quantity):
    """Number of GPUs of a node."""

    unit = "GPU"


class SmCount(Quantity):
    """Number of streaming multiprocessors of a GPU; of compute units of an AMD GPU."""

    unit = "SM"


class Power(Quantity):
    """Power that a GPU may draw."""

    unit = "W"


class Price(Quantity):
    """Price of one GPU for an hour, as `source` gave it on `date` (a day or a month), because prices change."""

    unit = "USD/h"
    date: str

    @field_validator("date", mode="before")
    @classmethod
    def _day_or_month(cls, text: Any) -> Any:
        if not isinstance(text, str) or not _DATE.fullmatch(text):
            raise ValueError(f"expected a day or a month in quotes, such as '2026-05-20' or '2026-05', got {text!r}")
        return text


FileKind = TypeVar("FileKind", bound=Frozen)


def read_values(kind: type[FileKind], document: Document, **loaded: object) -> FileKind:
    """Contents of a file, checked and converted to the class `kind`.

    `loaded`: values that replace those of its keys. InputError with `file:line` of every wrong key and quantity.
    """
    try:
        return kind.model_validate({**document.data, **loaded})
    except ValidationError as error:
        raise InputError(_problems(document, error)) from None


def _problems(document: Document, error: ValidationError) -> Iterator[Problem]:
    for item in error.errors():
        key = ".".join(map(str, item["loc"])).removesuffix(".value")
        message = _MESSAGES.get(item["type"], item["msg"].removeprefix("Value error, "))
        yield Problem(document.where(item["loc"]), f"{key}: {message}" if key else message)
