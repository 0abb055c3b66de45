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


def test_blocks_of_several_groups_multiply() -> None:
    """Nano has a group of attention and four of Mamba, each of 6 layers: 33,823 blocks / 5 x 544 tokens."""
    report = served()
    assert report.serving is not None
    assert "33,823 x 544 / 5 " in shown(report)
    assert f"{33823 // 5 * 544:,}" in shown(report)
    newer = served(generation={"tp": 4, "max_model_len": 262144, "version": "0.25.1"})
    assert newer.serving is not None
    assert newer.serving.cache_groups == 5
    assert f"{newer.serving.num_blocks:,} x {newer.serving.block_size:,}, 5 " in shown(newer)
    dense = served(model="llama-3.1-8b", generation={"tp": 1, "max_model_len": 4096})
    assert dense.serving is not None
    assert dense.serving.cache_groups == 1
    assert f"{dense.serving.num_blocks:,} x {dense.serving.block_size:,} " in shown(dense)


def test_several_have_no_decoding_and_a_refusal_is_told() -> None:
    refused = served(generation={"tp": 4, "max_model_len": 262144, "gpu_memory_utilization": 0.2})
    text = shown(served(), refused)
    assert "decoding" not in text
    assert "s: the engine does not start: no memory is left" in text


def test_nothing_for_what_is_trained() -> None:
    assert servesheet([served().model_copy(update={"serving": None})], 80) == []
