"""Sizes of torch's blocks and how they are printed; worked out by hand from its constants."""

from __future__ import annotations

import pytest

from simcore.validation.out_of_memory.block import block_bytes, is_printed_as, parse_size

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(("asked", "block"), [
    (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB),
    (10 * MIB + 1, 12 * MIB), (GIB, GIB), (GIB + 512, GIB + 2 * MIB), (1024 * 154880 * 2, 304 * MIB)])
def test_a_request_takes_a_block(asked: int, block: int) -> None:
    assert block_bytes(asked) == block


LLAMA_LAYER = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096


@pytest.mark.parametrize(("source", "asked", "text"), [
    ("github.com/GanjinZero/RRHF/issues/30 clones lm_head.weight of OPT-13B in fp32", 50272 * 5120 * 4, "982.00 MiB"),
    ("github.com/huggingface/trl/issues/3436 gathers a layer of a 7B Llama in bf16", LLAMA_LAYER * 2, "388.00 MiB")])
def test_sizes_in_public_issues_are_blocks_of_their_tensors(source: str, asked: int, text: str) -> None:
    assert is_printed_as(asked, text), source
    assert asked != parse_size(text)


@pytest.mark.parametrize(("text", "size"), [
    ("0 bytes", 0), ("896.00 KiB", 896 * 1024), ("2.00 MiB", 2 * MIB), ("1024.00 MiB", GIB), ("1.50 GiB", 1536 * MIB)])
def test_a_printed_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("asked", "text", "is_it"), [
    (4096 * 131072 * 4, "2.00 GiB", True), (4096 * 131072 * 4 - 5 * MIB, "2.00 GiB", True),
    (4096 * 131072 * 4 - 9 * MIB, "2.00 GiB", False), (1024 * 154880 * 2, "304.00 MiB", True),
    (1024 * 154880 * 2, "302.00 MiB", False)])
def test_a_request_is_printed_with_two_decimals(asked: int, text: str, *, is_it: bool) -> None:
    assert is_printed_as(asked, text) is is_it
