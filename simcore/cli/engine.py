"""What an engine that generates does with its memory, for a terminal: one line a scenario, decoding of one alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.style import Style
from rich.text import Text

from simcore.cli.columns import Column, grids
from simcore.cli.tables import plain, plain_table
from simcore.results.engine import Serving
from simcore.results.report import Report
from simcore.units import format_bytes, format_seconds

__all__ = ["servesheet"]


def servesheet(reports: Sequence[Report], width: int) -> list[RenderableType]:
    """The table of scenarios that generate, and why an engine does not start; of a single one, its decoding below."""
    served = [report for report in reports if report.serving is not None]
    if not served:
        return []
    shown: list[RenderableType] = [*grids(_COLUMNS, served, [Style()] * len(served), width)]
    shown += [Text(plain(f"{report.name}: the engine does not start: {report.serving.refusal}"))
              for report in served if report.serving and report.serving.refusal]
    if len(reports) == 1 and served[0].serving is not None:
        shown += _decoding(served[0].serving)
    return shown


def _of(show: Callable[[Serving], str]) -> Callable[[Report], str]:
    return lambda report: "" if report.serving is None else plain(show(report.serving))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f}"


def _heads(found: Serving) -> str:
    return f"{found.kv_heads_per_rank}" + (f" (x{found.kv_head_replicas})" if found.kv_head_replicas > 1 else "")


_COLUMNS = (
    Column("engine", _of(lambda one: f"{one.engine} {one.version}"), "left"),
    Column("asks for\nGiB", _of(lambda one: _gib(one.requested_bytes))),
    Column("weights\nGiB", _of(lambda one: _gib(one.weight_bytes))),
    Column("LoRA\nbuffers", _of(lambda one: format_bytes(one.adapter_buffer_bytes) if one.adapter_buffer_bytes
                                   else "-")),
    Column("profile\nGiB", _of(lambda one: _gib(one.activation_bytes))),
    Column("cache\nGiB", _of(lambda one: _gib(one.cache_bytes))),
    Column("KV heads\na rank", _of(_heads)),
    Column("KV bytes\na token", _of(lambda one: f"{one.kv_bytes_per_token:,} {one.kv_dtype}")),
    Column("state of a\nsequence", _of(lambda one: f"{format_bytes(one.state_bytes)} {one.ssm_dtype}" if one.state_bytes
                                       else "-")),
    Column("blocks", _of(lambda one: f"{one.num_blocks:,} x {one.block_size}")),
    Column("tokens\nin cache", _of(lambda one: f"{one.cache_tokens:,}")),
    Column("sequences of\nfull length", _of(lambda one: f"{one.concurrency:,.2f} x {one.max_model_len:,}")),
)


def _decoding(found: Serving) -> Iterator[RenderableType]:
    if not found.decode:
        return
    table = plain_table("decoding (a bound from bytes)", "context", "read by a rank", "a token", "tokens/s")
    for one in found.decode:
        table.add_row(f"{one.sequences:,} sequences", f"{one.context_tokens:,}", format_bytes(one.bytes_read),
                      format_seconds(one.seconds), f"{one.tokens_per_s:,.0f}")
    yield from ("", table)
