"""Sizes in the prose of `scenarios/*/README.md` are those that come out today."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from shipped_reports import reports
from simcore.results.report import Peak, Report
from simcore.units import GIB
from test_scenarios import MARKED, SCENARIOS

Sizes = dict[str, Callable[[], float]]


def one(file: str, *words: str) -> Report:
    """Report of a file whose name has all the words."""
    found = [report for report in reports(SCENARIOS / f"{file}.yaml") if all(word in report.name for word in words)]
    assert len(found) == 1, [report.name for report in found]
    return found[0]


def peak(report: Report) -> Peak:
    assert report.peak_rank is not None
    assert report.peak_rank.peak is not None
    return report.peak_rank.peak


def params(report: Report, *components: str) -> int:
    """Bytes of parameters at rest on the fullest rank, in all or of some components."""
    assert report.peak_rank is not None
    return sum(part.params_bytes for name, part in report.peak_rank.at_rest.items()
               if not components or name in components)


def at_rest(report: Report) -> int:
    assert report.peak_rank is not None
    return report.peak_rank.at_rest_bytes()


def gathered(report: Report) -> int:
    return sum(row.wire_bytes for row in report.ranks[0].traffic if row.collective == "all_gather")


def frozen(report: Report) -> int:
    return params(report) - params(report, "adapters", "expert_adapters")


def allocated(length: str) -> int:
    return peak(one(CONTEXT, "=2,", length)).allocated_bytes


ATTENTION, EXPERTS = '"o_proj"]]', '"down_proj"]]'
CONTEXT = "zero3-estimate/one-context"
SIZES: dict[str, Sizes] = {
    "claims": {"26.9 GiB": lambda: at_rest(one("claims/llama-3b-zero", "zero2", "dgx-h100"))},
    "expert-loop": {"102 GiB": lambda: gathered(one("expert-loop/loop")),
                    "4 GiB": lambda: gathered(one("expert-loop/grouped", "balanced"))},
    "nemo-rl-sft": {"7.4 GiB": lambda: frozen(one("nemo-rl-sft/nano-lora", "dp_shard=8")) / 2},  # 4 bytes, not 2
    "qlora-experts": {
        "57.1 GiB": lambda: params(one("qlora-experts/nano", "hf,", ATTENTION)),
        "14.1 GiB": lambda: params(one("qlora-experts/nano", "hub", ATTENTION), "routed_experts"),
        "54.7 GiB": lambda: params(one("qlora-experts/nano", "hf,", ATTENTION), "routed_experts"),
        "0.5 GiB": lambda: 23 * 4096 * 2688 * 2,
        "68.0 GiB": lambda: peak(one("qlora-experts/unsloth", ATTENTION)).device_bytes,
        "72.2 GiB": lambda: peak(one("qlora-experts/unsloth", EXPERTS)).device_bytes,
        "0.8 GiB": lambda: params(one("qlora-experts/nano", "hub", EXPERTS), "adapters")},
    "trainers": {"0.9 GiB": lambda: 2 * 500e6, "4 GiB": lambda: 11 * 128_256 * 3072},
    "zero3-estimate": {
        "0.77 GiB": lambda: 4 * 50_400 * 4096,
        "13 GiB": lambda: allocated("2048"),
        "10.4 GiB": lambda: peak(one(CONTEXT, "=2,", "2048")).by_category["activation"],
        "1.9 GiB": lambda: peak(one(CONTEXT, "=2,", "2048")).by_category["all_gather_output"],
        "56 GiB": lambda: peak(one(CONTEXT, "=2,", "2048")).host_bytes,
        "8 GiB": lambda: allocated("2048") - allocated("=512")}}
"""Folder, then size as it is written."""


@pytest.mark.parametrize("folder", [path.name for path in sorted(SCENARIOS.iterdir()) if path.is_dir()])
def test_sizes_in_a_readme_are_what_comes_out(folder: str) -> None:
    text = MARKED.sub("", (SCENARIOS / folder / "README.md").read_text(encoding="utf-8"))
    written = set(re.findall(r"\d[\d.,]* GiB", text))
    assert written == set(SIZES.get(folder, {}))
    for size in written:
        figure = size.partition(" ")[0]
        digits = len(figure.partition(".")[2])
        assert f"{SIZES[folder][size]() / GIB:.{digits}f}" == figure, size


def test_other_figures_of_the_prose() -> None:
    """Words for shares and counts in the same pages."""
    lora = one("nemo-rl-sft/nano-lora", "dp_shard=8")
    assert lora.peak_rank is not None
    learns = lora.peak_rank.at_rest["adapters"]
    assert 0.6 < (learns.grads_bytes + learns.optimizer_bytes) / frozen(lora) < 0.7  # two thirds of the base
    assert 0.2 < params(lora, "adapters") / frozen(lora) < 0.25  # more than a fifth
    policy = one("nano-grpo/lora-16gpu").ranks[0]
    learns = policy.at_rest["adapters"]
    adapters = learns.params_bytes + learns.grads_bytes + learns.optimizer_bytes
    assert 0.3 < adapters / policy.at_rest_bytes() < 1 / 3  # nearly a third
    megatron = one("nano-megatron-vs-fsdp2/sft-8-megatron")
    assert 0.97 <= at_rest(megatron) / (megatron.capacity_bytes or 1) < 0.98  # 3 % for everything else
    assert params(one("qlora-experts/nano", "hub", ATTENTION)) / GIB == pytest.approx(16.5, abs=0.05)
