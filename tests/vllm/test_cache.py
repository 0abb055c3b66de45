"""Pages, blocks and concurrency are those that vLLM's own functions work out (`tests/truth/probe_vllm.py`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from simcore.models.graph import architecture_of, model_config
from simcore.vllm.cache import Formats, Pages, pages
from simcore.vllm.drafter import drafter_of
from simcore.vllm.release import RELEASES

TRUTH = ROOT / "tests/truth/vllm"
ROWS = [(version, row) for version in RELEASES
        for row in json.loads((TRUTH / f"cache-{version}.json").read_text(encoding="utf-8"))]
DTYPES = {"auto": "bf16", "fp8": "fp8", "float32": "fp32"}


def pages_of(model: str, tp: int, kv: str = "bf16", ssm: str = "bf16", version: str = "0.12.0", *,
             cached: bool = False, mode: str = "auto", drafted: int = 0, longest_pass: int = 0) -> Pages:
    fields = model_config(model, None, "")
    architecture = architecture_of(fields)
    drafter = drafter_of(fields, architecture, tp, drafted, 0, narrow_router=True) if drafted else None
    return pages(architecture, tp, Formats(kv, "bf16", ssm), RELEASES[version], cached=cached, mode=mode,
                 drafter=drafter, longest_pass=longest_pass)


@pytest.mark.parametrize(("version", "row"), ROWS, ids=[f"{version}-{row['name']}" for version, row in ROWS])
def test_blocks_are_the_engines_own(version: str, row: dict[str, Any]) -> None:
    cache_pages = pages_of(row["model"], row["tp"], DTYPES[row["kv"]], DTYPES[row["ssm"]], version,
                           cached=row["cached"], mode=row.get("mode", "auto"), drafted=row.get("drafted", 0),
                           longest_pass=row.get("pass", 0))
    cache = cache_pages.fill(row["bytes"])
    assert (cache_pages.block_size, cache_pages.page_bytes) == (row["block_size"], row["page_bytes"])
    assert cache_pages.groups == row["groups"]
    assert (cache.num_blocks, cache.num_bytes) == (row["num_blocks"], row["cache_bytes"])
    assert cache_pages.needed(row["len"]) == row["needed_bytes"]
    assert cache.concurrency(row["len"]) == pytest.approx(row["concurrency"], rel=1e-12)


def test_an_fp8_cache_halves_keys_and_values_and_leaves_states() -> None:
    wide, narrow = pages_of("nemotron-3-nano-30b-a3b", 4), pages_of("nemotron-3-nano-30b-a3b", 4, "fp8")
    assert wide.token_bytes == 2 * narrow.token_bytes == 2 * 1 * 128 * 2
    assert wide.state_bytes == narrow.state_bytes == 3 * 6144 // 4 * 2 + 16 * 64 * 128 * 2


def test_kv_heads_that_tp_exceeds_are_replicated() -> None:
    assert [pages_of("nemotron-3-nano-30b-a3b", tp).token_bytes for tp in (1, 2, 4, 8)] == [1024, 512, 512, 512]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("cached", [False, True])
def test_the_longest_that_is_let_in_is_the_longest_that_fits(version: str, *, cached: bool) -> None:
    cache_pages = pages_of("nemotron-3-nano-30b-a3b", 4, version=version, cached=cached)
    budget = cache_pages.needed(50_000)
    longest = cache_pages.longest(budget)
    assert longest >= 50_000
    assert cache_pages.needed(longest) <= budget < cache_pages.needed(longest + 1)
    assert cache_pages.longest(0) == 0


def test_the_longest_with_a_window_is_the_longest_that_fits() -> None:
    """Beyond window and pass only layers of all tokens grow."""
    seen = pages_of("gemma-3-1b", 1, version="0.25.1", longest_pass=2048)
    for tokens in (300, 2560, 30_000):
        longest = seen.longest(seen.needed(tokens))
        assert seen.needed(longest) <= seen.needed(tokens) < seen.needed(longest + 1)
    assert seen.longest(0) == 0
    more = seen.needed(40_000 + 16) - seen.needed(40_000)
    assert more == seen.page_bytes * seen.group_size
    assert seen.read(9_000, 4) == seen.token_bytes * (4 * 9_000 + 22 * 512)


def test_prefixes_cost_a_state_for_every_block() -> None:
    plain, kept = (pages_of("nemotron-3-nano-30b-a3b", 4, cached=cached) for cached in (False, True))
    assert plain.blocks_of(10 * plain.block_size) == 10 + 4
    assert kept.blocks_of(10 * kept.block_size) == 10 * (1 + 4)
    assert kept.block_size % 128 == 0
    assert pages_of("llama-3.1-8b", 1, cached=True) == pages_of("llama-3.1-8b", 1)


def test_the_cache_is_told_in_tokens_as_each_version_does() -> None:
    old, new = (pages_of("nemotron-3-nano-30b-a3b", 4, version=version).fill(2**34) for version in RELEASES)
    assert old.num_blocks == new.num_blocks
    assert old.tokens(4096) == old.num_blocks // 5 * 544
    assert new.tokens(4096) == int(new.num_blocks / new.pages.blocks_of(4096) * 4096)
