"""The engine's line for a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from simcore.cli.sheets.engine import servesheet
from simcore.results.report import Report
from vllm.test_workload import served


def shown(*reports: Report) -> str:
    out = StringIO()
    Console(file=out, width=240).print(*servesheet(reports, 240), sep="\n")
    return out.getvalue()


def test_one_engine_with_its_decoding() -> None:
    text = shown(served())
    for told in ("vllm 0.12.0", "1 (x2)", "3,072 bf16", "x 544", "x 262,144", "decoding", "1 sequences"):
        assert told in text


def test_several_have_no_decoding_and_a_refusal_is_told() -> None:
    refused = served(generation={"tp": 4, "max_model_len": 262144, "gpu_memory_utilization": 0.2})
    text = shown(served(), refused)
    assert "decoding" not in text
    assert "s: the engine does not start: no memory is left" in text


def test_nothing_for_what_is_trained() -> None:
    assert servesheet([served().model_copy(update={"serving": None})], 80) == []
