"""Memory of inference engines, for a terminal: one line a scenario; for a single scenario its decoding too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.style import Style
from rich.text import Text

from simcore.cli.sheets.columns import Column, grids
from simcore.cli.sheets.tables import plain, plain_table
from simcore.results.engine import Serving
from simcore.results.report import Report
from simcore.units import format_bytes, format_seconds, in_gib

__all__ = ["servesheet"]


def servesheet(reports: Sequence[Report], width: int) -> list[RenderableType]:
    """Table of inference engines' memory, a row a scenario that has one; [] if none has.

    Numbers are of one rank. Below it: why an engine does not start; for a single report its decoding. `width`:
    characters of the terminal; columns beyond it follow in further tables.
    """
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


def _heads(found: Serving) -> str:
    return f"{found.kv_heads_per_rank}" + (f" (x{found.kv_head_replicas})" if found.kv_head_replicas > 1 else "")


def _blocks(found: Serving) -> str:
    """Blocks and their tokens; groups of layers that share them divide, where the engine counts tokens that way."""
    each = f"{found.num_blocks:,} x {found.block_size:,}"
    if found.cache_groups == 1:
        return each
    divides = found.num_blocks // found.cache_groups * found.block_size == found.cache_tokens
    return f"{each}{' /' if divides else ','} {found.cache_groups}"


_COLUMNS = (
    Column("engine", _of(lambda s: f"{s.engine} {s.version}"), "left"),
    Column("asks for\nGiB", _of(lambda s: in_gib(s.requested_bytes))),
    Column("weights\nGiB", _of(lambda s: f"{in_gib(s.weight_bytes)} {s.quantization}".rstrip())),
    Column("LoRA\nbuffers", _of(lambda s: format_bytes(s.adapter_buffer_bytes) if s.adapter_buffer_bytes
                                   else "-")),
    Column("profile\nGiB", _of(lambda s: in_gib(s.activation_bytes))),
    Column("cache\nGiB", _of(lambda s: in_gib(s.cache_bytes))),
    Column("KV heads\na rank", _of(_heads)),
    Column("KV bytes\na token", _of(lambda s: f"{s.kv_bytes_per_token:,} {s.kv_dtype}")),
    Column("state of a\nsequence", _of(lambda s: f"{format_bytes(s.state_bytes)} {s.ssm_dtype}" if s.state_bytes
                                       else "-")),
    Column("blocks x tokens,\ngroups of layers", _of(_blocks)),
    Column("tokens\nin cache", _of(lambda s: f"{s.cache_tokens:,}")),
    Column("sequences of\nfull length", _of(lambda s: f"{s.concurrency:,.2f} x {s.max_model_len:,}")),
)


def _decoding(serving: Serving) -> Iterator[RenderableType]:
    if not serving.decode:
        return
    table = plain_table("decoding (without collectives)", "context", "read by a rank", "a token", "tokens/s")
    for decode in serving.decode:
        table.add_row(f"{decode.sequences:,} sequences", f"{decode.context_tokens:,}", format_bytes(decode.bytes_read),
                      format_seconds(decode.seconds), f"{decode.tokens_per_s:,.0f}")
    yield from ("", table)
