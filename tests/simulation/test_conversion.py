"""Merging adapters and exporting, by hand from what the sources hold at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.results.report import HostPhase, Report
from simcore.simulate import simulate

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LARGEST = 256 * 688
NUM = 2 * 1000 * 256 + 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * LARGEST + 2 * 256) + 256
"""Parameters of llama-tiny: tables, layers, the last norm."""


def asked(framework: str, mesh: dict[str, int] | None = None, *, merge: str = "none", export: str = "none",
          **given: Any) -> Report:
    scenario = small.scenario(framework, mesh, **({"model": "llama-tiny"} | given))
    chosen = scenario.checkpoint.model_copy(update={"merge": merge, "export": export})
    return simulate(scenario.model_copy(update={"checkpoint": chosen}), timed=False)


def phase(name: str, *given: Any, **named: Any) -> HostPhase:
    report = asked(*given, **named)
    assert report.status == "ok", report.problems
    assert report.host is not None
    return next(one for one in report.host.phases if one.phase == name)


def lora(**more: Any) -> dict[str, Any]:
    return {"method": "lora", "lora": {"rank": 8, "target_modules": LINEARS, **more}}


def test_a_merge_on_the_host_holds_the_base_and_one_linear() -> None:
    """Adapters as the training stored them; a product of fp32 and the same scaled."""
    low_rank = 4 * 8 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 688))
    found = phase("merge", "fsdp2", {"dp_shard": 8}, merge="host", **lora(dtype="fp32"))
    assert found.by_owner == {"base in 16 bits": 2 * NUM, "adapters": 4 * low_rank, "one linear": 2 * 4 * LARGEST}
    assert (found.device_bytes, found.device_verdict) == (0, "fits")


def test_one_process_merges_on_the_host_whatever_the_job_has() -> None:
    found = [phase("merge", "ddp", {"dp_replicate": ranks}, merge="host", **lora()).host_bytes for ranks in (1, 8)]
    assert found[0] == found[1]


def test_every_process_merges_on_its_device() -> None:
    found = phase("merge", "ddp", {"dp_replicate": 2}, merge="device", **lora(dtype="fp32"))
    assert found.by_category["one tensor"] == 2 * 4 * LARGEST
    packed = phase("merge", "ddp", {}, merge="device", method="qlora", lora={"rank": 8, "target_modules": LINEARS})
    assert 0.5 * NUM < packed.by_owner["a file"] < 2 * NUM  # linears in 4 bits, tables in 16; the last is written whole
    assert packed.by_owner.keys() == {"a file"}
    assert packed.by_category["one tensor"] > (2 + 2 + 2 * 2) * LARGEST + LARGEST // 2


def test_unsloth_merges_a_linear_in_fp32() -> None:
    """The matrix in fp32 and again in 16 bits, or the matrix and its adapters; the base comes from files."""
    options = {"FastLanguageModel": True, "attn_implementation": "flash_attention_2"}
    found = phase("merge", "ddp", {}, merge="device", options=options, **lora())
    assert found.by_category["one tensor"] == (4 + 2) * LARGEST
    assert found.by_owner == {"one linear": (4 + 2) * LARGEST}


def test_megatron_exports_in_the_job_or_on_one_host() -> None:
    """Ranks gather the largest tensor, here a table; with adapters there is a third copy of it."""
    table = 2 * 1000 * 256
    full = phase("export", "megatron", {"dp_shard": 2}, export="job")
    assert full.by_category["one tensor"] == 2 * _padded(table)
    merged = phase("export", "megatron", {"dp_shard": 2}, export="job", method="lora")
    assert merged.by_category["one tensor"] == 3 * _padded(table)
    alone = phase("export", "megatron", {"dp_shard": 2}, export="host")
    assert alone.device_bytes == 0
    assert alone.by_owner["whole model"] >= 2 * NUM


def _padded(num_bytes: int) -> int:
    job, _ = small.prepared("megatron", {"dp_shard": 2}, model="llama-tiny")
    table = max(spec.numel for kind in job.graph.tensors for spec in kind)
    assert num_bytes <= 2 * table
    return 2 * table


def test_experts_of_all_ranks_are_gathered_together() -> None:
    """Bridge gathers one expert of each rank of ep: `gather_from_ep_ranks`."""
    given = {"model": {"config": small.TINY, "overrides": {"vocab_size": 128}}, "export": "job"}
    two, four = (phase("export", "megatron", {"dp_shard": 4, "ep": ep}, **given).by_category["one tensor"]
                 for ep in (2, 4))
    assert four >= two


# ---- durations: by hand from bytes and the rates of a DGX H100 and the assumed drive --------------------------------
READ, WRITE, LINK, HBM = 6.5e9, 3.5e9, 55.1e9, 3.35e12
RANK = 8


@pytest.fixture
def drive(tmp_path: Path) -> str:
    """A DGX H100 whose drives are faster than anything else."""
    return with_drive(tmp_path, "1000 TB/s", "1000 TB/s")


def with_drive(folder: Path, read: str, write: str) -> str:
    text = (ROOT / "topologies/dgx-h100.yaml").read_text(encoding="utf-8")
    file = folder / "fast.yaml"
    file.write_text(text.replace("  host_link:", f'  nvme: {{read: "{read}", write: "{write}"}}\n  host_link:'),
                    encoding="utf-8")
    return str(file)


def linears() -> int:
    """Elements of all adapted linears of llama-tiny."""
    return 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * LARGEST)


def test_a_merge_on_the_host_waits_for_the_drive() -> None:
    """Base and adapters are read, the base is written; the memory of the host is two hundred times as fast."""
    low_rank = 4 * 4 * RANK * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 688))
    found = phase("merge", "fsdp2", {"dp_shard": 8}, merge="host", **lora(dtype="fp32"))
    assert found.seconds == pytest.approx((2 * NUM + low_rank) / READ + 2 * NUM / WRITE)


def test_a_merge_on_the_device_waits_for_the_drive_that_the_model_goes_to() -> None:
    """All of the base in the type that the device stores, collected on the host as it is less than 50 GB."""
    for dtype, width in (("bf16", 2), ("fp32", 4)):
        given = lora(dtype="fp32") | {"precision": {"params": dtype}}
        found = phase("merge", "ddp", {"dp_replicate": 2}, merge="device", **given)
        assert found.by_owner == {"a file": width * NUM}
        assert found.seconds == pytest.approx(width * NUM / WRITE)


def test_unsloth_reads_and_writes_the_files_of_the_base() -> None:
    options = {"FastLanguageModel": True, "attn_implementation": "flash_attention_2"}
    found = phase("merge", "ddp", {}, merge="device", options=options, **lora())
    assert found.seconds == pytest.approx(2 * NUM / READ + 2 * NUM / WRITE)


def test_a_merge_on_the_device_moves_each_matrix_in_its_memory(drive: str) -> None:
    """A product of fp32 and the same scaled, each written and read; the base in 16 bits read and written."""
    given = lora(dtype="fp32") | {"precision": {"params": "bf16"}, "topology": drive}
    found = phase("merge", "ddp", {}, merge="device", **given)
    assert found.seconds == pytest.approx(max(2 * (2 * 4 + 2) * linears() / HBM, 2 * NUM / LINK))


def test_wide_adapters_wait_for_their_products(drive: str) -> None:
    """At rank 8,192 the product of fp32, 66.9 TFLOP/s, takes longer than the link."""
    found = phase("merge", "ddp", {}, merge="device", method="lora", precision={"params": "bf16"}, topology=drive,
                  lora={"rank": 8192, "target_modules": LINEARS, "dtype": "fp32"})
    assert found.seconds == pytest.approx(2 * 8192 * linears() / 66.9e12)


def test_a_packed_base_goes_to_the_host_and_back(drive: str) -> None:
    """To the host go sums in 16 bits, and then the packed model in its files."""
    found = phase("merge", "ddp", {}, merge="device", method="qlora", lora={"rank": RANK, "target_modules": LINEARS},
                  topology=drive)
    assert found.seconds == pytest.approx((2 * linears() + found.by_owner["a file"]) / LINK)


def test_an_export_waits_for_the_drive() -> None:
    job, host = (phase("export", "megatron", {"dp_shard": 2}, export=where) for where in ("job", "host"))
    whole = host.by_owner["whole model"]
    assert job.seconds == pytest.approx(whole / WRITE)
    assert host.seconds == pytest.approx(whole / READ + whole / WRITE)


def test_a_named_drive_counts_and_an_assumed_one_is_said(tmp_path: Path) -> None:
    report = asked("ddp", {}, merge="host", **lora())
    (told,) = (one for one in report.assumptions if one.what == "drives of a host")
    assert (told.value, told.kind) == ("read 6.5 GB/s, written 3.5 GB/s", "assumed")
    file = with_drive(tmp_path, "13 GB/s", "7 GB/s")
    fast = phase("merge", "ddp", {}, merge="host", topology=file, **lora())
    slow = phase("merge", "ddp", {}, merge="host", **lora())
    assert slow.seconds is not None
    assert fast.seconds == pytest.approx(slow.seconds / 2)


@pytest.mark.parametrize(("framework", "rule"), [
    ("fsdp2", "transformers 5.23 modeling_utils.py save_pretrained"), ("ddp", "transformers 5.23 modeling_utils.py"),
    ("zero2", "transformers 5.23 modeling_utils.py"), ("fsdp1", "transformers 5.23 modeling_utils.py"),
    ("automodel", "nemo-automodel 0.7.0 components/checkpoint/_backports/hf_storage.py")])
def test_an_export_is_refused_by_the_rule_of_the_files(framework: str, rule: str) -> None:
    (problem,) = asked(framework, {}, export="host").problems
    assert problem.rule.startswith(rule)


def test_files_of_other_trainers_are_not_of_hugging_face() -> None:
    (problem,) = asked("fsdp2", {"dp_shard": 2}, export="host", implementation="torchtitan").problems
    assert problem.message.startswith("not yet: the conversion of files that a trainer of torchtitan's layers writes")


@pytest.mark.parametrize(("framework", "mesh", "given", "told"), [
    ("fsdp2", {"dp_shard": 2}, {"merge": "device", **lora()}, "a rank holds parts of parameters"),
    ("zero3", {"dp_shard": 2}, {"merge": "device", **lora()}, "a rank holds parts of parameters"),
    ("ddp", {}, {"merge": "host"}, "method: full has no adapters to merge"),
    ("ddp", {}, {"merge": "device", "method": "qlora", "quantization": {"format": "int8"},
                 "lora": {"target_modules": LINEARS}}, "not yet: the merge into a base in int8"),
    ("ddp", {}, {"export": "job"}, "writes files of Hugging Face already"),
    ("megatron", {"dp_shard": 2}, {"merge": "host", "method": "lora"}, "Bridge merges adapters while it exports")])
def test_what_cannot_be_converted_is_refused(framework: str, mesh: dict[str, int], given: Any, told: str) -> None:
    report = asked(framework, mesh, **given)
    (problem,) = report.problems
    assert told in problem.message
    assert "checkpoint" in problem.where or problem.where.startswith("small.json")
