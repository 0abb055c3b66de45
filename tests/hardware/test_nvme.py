"""States of ZeRO-3 on a host's drives: what lies where, and how long it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, InputError, NotYet, RankscopeError
from simcore.frameworks.deepspeed.offload_buffers import beside_tensors
from simcore.hardware.nvme import aligned, is_swapped, stays_on_device
from simcore.inputs.shipped import data_folder
from simcore.placement.plan import Plan
from simcore.recording.tape import Op
from simcore.results.report import Report
from simcore.simulate import simulate

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/nvme-0.19.6.json").read_text(encoding="utf-8"))["cases"]
MODEL = {"config": "llama-3.2-3b", "overrides": {"num_hidden_layers": 2}}
READ, WRITE = 6, 3


@pytest.fixture
def drives(tmp_path: Path) -> str:
    """dgx-h100 with drives."""
    text = (data_folder("topologies") / "dgx-h100.yaml").read_text(encoding="utf-8")
    path = tmp_path / "drives.yaml"
    told = f"\nnode:\n  nvme: {{read: {READ} GB/s, write: {WRITE} GB/s}}\n"
    path.write_text(text.replace("\nnode:\n", told, 1), encoding="utf-8")
    return str(path)


def asked(topology: str, where: str = "nvme", **given: Any) -> dict[str, Any]:
    return {"model": MODEL, "topology": topology, "offload": {"optimizer": where}, "recompute": "full"} | given


def ran(*given: Any, **more: Any) -> Report:
    report = simulate(small.scenario("zero3", {"dp_shard": 2}, **asked(*given, **more)))
    assert report.problems == ()
    return report


def plan(*given: Any, **more: Any) -> Plan:
    return small.plan_of("zero3", {"dp_shard": 2}, **asked(*given, **more))


def test_what_is_small_or_leaves_a_rest_is_no_file() -> None:
    assert [is_swapped(numel) for numel in (2**18 - 1, 2**18)] == [False, True]
    assert [aligned(numel) for numel in (1, 256, 257)] == [256, 256, 512]
    assert [stays_on_device(numel) for numel in (2**18 - 256, 2**18, 2**18 + 1)] == [True, False, True]


def test_states_are_files_and_the_host_has_buffers(drives: str) -> None:
    """Four as long as the largest sub-group; 16-bit gradients rest there as without drives."""
    placed = plan(drives, options={"sub_group_size": 10**8})
    held, elements = beside_tensors(placed, rounded=False), placed.graph.count() // 2
    away = {what: size for what, size in held.items() if size}
    assert placed.elsewhere()["nvme"] == 3 * 4 * elements
    assert away["buffers of drives"] >= 4 * 4 * 10**8
    assert placed.elsewhere()["host"] == 2 * elements
    left = held["gradients"] // 4  # a last sub-group that is too small to be files
    assert 0 < left < 2**18
    assert held["optimizer states"] == 12 * left
    more = plan(drives, options={"sub_group_size": 10**8, "offload_optimizer": {"buffer_count": 6}})
    assert beside_tensors(more, rounded=False)["buffers of drives"] == away["buffers of drives"] * 6 // 4


def test_the_step_waits_for_drives(drives: str) -> None:
    """Gradients written, four tensors read, three written: 16 bytes and 16 an element, shared by two ranks.

    But for what is small: a few norms.
    """
    with_drives, without = ran(drives), ran("dgx-h100", "host")
    assert with_drives.time is not None
    assert without.time is not None
    elements = plan(drives).graph.count() / 2
    seconds = 2 * (16 * elements / (READ * 1e9) + 16 * elements / (WRITE * 1e9))
    assert with_drives.time.step_s - without.time.step_s == pytest.approx(seconds, rel=0.02)


def test_small_gradients_wait_on_the_device(drives: str) -> None:
    program = small.program_of("zero3", {"dp_shard": 2}, **asked(drives))
    placed = plan(drives)
    small_ones = sum(p.padded for layer in placed.layers for p in placed.of_layer(layer)
                     if p.trainable and stays_on_device(p.padded))
    born = [size for _, phase, size in small.postings(program, "unswapped_grads") if phase != "optimizer"]
    assert sum(born) == 4 * small_ones > 0
    assert [size for *_, size in small.postings(program, "unswapped_grads")][-1] == -sum(born)


@pytest.mark.parametrize("name", TRUTH)
def test_bytes_of_files_are_deepspeeds(name: str, drives: str) -> None:
    """`tests/truth/probe_deepspeed.py`, its own swapper over a handle that moves nothing."""
    case = TRUTH[name]
    found, options = case["found"], dict(case["options"], offload_optimizer={
        key: value for key, value in case["options"]["offload_optimizer"].items() if key == "buffer_count"})
    given = asked(drives, model={"config": "llama-3.2-3b", "overrides": case["model"]}, options=options)
    program = small.program_of("zero3", {"dp_shard": case["ranks"]}, microbatches=2, **given)
    rows = [row for row in program.columns.tolist() if row[0] == Op.HOST]
    moved = {way: sum(aux for *_, slot, _, _, aux in rows if slot == number)
             for way, number in (("read", 1), ("write", 2))}
    every = found["moved"]["backward"] + found["moved"]["step"]
    assert moved == {way: sum(size for name, size in every if name == way) for way in ("read", "write")}
    waiting = [size for *_, size in small.postings(program, "unswapped_grads") if size > 0]
    assert sum(waiting) == 4 * sum(found["unswapped"])
    placed = small.plan_of("zero3", {"dp_shard": case["ranks"]}, **given)
    assert beside_tensors(placed, rounded=False)["buffers of drives"] == sum(found["buffers"])


@pytest.mark.parametrize(("framework", "given", "kind", "told"), [
    ("zero3", {"topology": "dgx-h100"}, InputError, "dgx-h100 does not say node.nvme"),
    ("zero2", {}, NotYet, "nvme under stage 2"),
    ("zero3", {"offload": {"params": "nvme"}}, NotYet, "nvme under zero3"),
    ("zero3", {"options": {"offload_optimizer": {"buffer_count": 3}}}, IllegalLayout, "buffer_count 3: a master, 2"),
    ("zero3", {"options": {"offload_optimizer": {"pipeline_read": True}}}, NotYet, "pipeline_read: true"),
    ("zero3", {"options": {"offload_optimizer": {"buffer_size": 1}}}, InputError, "buffer_size: is about NVMe alone"),
    ("zero3", {"offload": {"optimizer": "host"}, "options": {"offload_optimizer": {"buffer_count": 5}}}, InputError,
     "buffer_count: is about NVMe alone")])
def test_what_is_refused(framework: str, given: dict[str, Any], kind: type[RankscopeError], told: str,
                         drives: str) -> None:
    with pytest.raises(kind, match=told):
        small.prepared(framework, {"dp_shard": 2}, **(asked(drives) | given))
