"""Topologies: what the built-in files say, what wrong files are told, and which link a communicator crosses."""

from __future__ import annotations

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
import truth_cases
from simcore.errors import InputError
from simcore.hardware.collective_curves import find_curves, load_curves
from simcore.hardware.efficiency import efficiency_names, load_efficiency
from simcore.hardware.topology import Fabric, Link, Topology, load_topology, topology_names
from simcore.inputs.document import read_document
from simcore.inputs.shipped import data_folder
from simcore.placement.mesh import Mesh
from simcore.simulate import simulate
from simcore.timing.collective import collective_ns

BUILT_IN = ("dgx-a100", "dgx-a100-40gb", "dgx-b200", "dgx-b200-simumax", "dgx-b300", "dgx-h100", "dgx-h200",
            "dgx-spark", "gb200-nvl72", "gb300-nvl72", "gtx-1080-ti", "h100-1gpu", "h100-96gb-hbm2e", "h100-pcie",
            "h200-nvl", "l40s", "mi300x", "mi325x", "mi350x", "mi355x", "rtx-2060", "rtx-2080-ti", "rtx-3060",
            "rtx-3070", "rtx-3080", "rtx-3090", "rtx-4070-ti", "rtx-4080", "rtx-4090", "rtx-5090", "rtx-a5000",
            "rtx-a6000", "rtx-pro-6000", "v100-16gb", "v100-32gb")
FOLDERS = (data_folder("topologies"), data_folder("topologies") / "efficiency")
FILES = sorted(path for folder in FOLDERS for path in folder.glob("*.yaml"))
H100 = load_topology("dgx-h100")
NVL72 = load_topology("gb200-nvl72")
ONE = load_topology("h100-1gpu")
WIDE = {"config": "llama-tiny", "overrides": {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8,
                                              "head_dim": 128, "intermediate_size": 8192}}


def edited(folder: Path, *changes: tuple[str, str], source: str = "dgx-h100") -> Path:
    """A copy of a built-in topology with some text replaced."""
    text = (data_folder("topologies") / f"{source}.yaml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def told(path: Path) -> str:
    with pytest.raises(InputError) as error:
        load_topology(path)
    return str(error.value)


def test_the_machine_of_simumax_is_a_b200_but_for_three_shares_that_it_published() -> None:
    """Shares that its kernels reach alone, 4dcaae51 `configs/system/b200_bf16_ceperm.json`; all else is as b200's."""
    mine, other = load_topology("dgx-b200-simumax"), load_topology("dgx-b200")
    shares = {"gemm": 0.508, "grouped_gemm": 0.578, "attention": 0.434}
    found, known = mine.efficiency.model_dump(), other.efficiency.model_dump()
    for kernel, share in shares.items():
        compute = found["kernels"][kernel]["compute"]
        assert compute["kind"] == "measured", kernel
        assert getattr(mine.efficiency.kernels, kernel).compute.si == pytest.approx(share), kernel
        known["kernels"][kernel]["compute"] = compute
    assert _values(found) == _values(known) | {"name": "b200-simumax"}
    assert mine.model_copy(update={"name": "", "efficiency": None}) == other.model_copy(
        update={"name": "", "efficiency": None})


def _values(page: dict[str, Any]) -> dict[str, Any]:
    """Without kinds and sources."""
    return {key: _values(value) if isinstance(value, dict) else value for key, value in page.items()
            if key not in ("kind", "source")}


def test_the_built_in_files_are_all_there() -> None:
    assert topology_names() == BUILT_IN


@pytest.mark.parametrize("name", topology_names())
def test_every_built_in_file_loads_and_is_named_as_its_file(name: str) -> None:
    topology = load_topology(name)
    assert topology.name == name
    assert topology.device.context_bytes < topology.device.usable_bytes <= int(topology.device.memory.total)
    assert hash(topology) == hash(load_topology(name))
    assert copy.deepcopy(topology) == topology


QUANTITY = r"-?[0-9.]+ ?(%|GPU|SM|W|USD/h|[mun]?s|[MGT]i?B|[GT]B/s|TFLOP/s)"


def leaves(data: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Leaves of a file by dotted key: quantities as mappings, all other values unchanged."""
    if isinstance(data, dict) and "value" not in data:
        for name, inner in data.items():
            yield from leaves(inner, f"{key}.{name}")
    else:
        yield key, data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_of_a_built_in_file_has_a_unit_a_kind_and_a_source(path: Path) -> None:
    """But for the number of nodes, where it is bounded; all else without them are names."""
    told = dict(leaves(read_document(path).data))
    assert sum(isinstance(leaf, dict) for leaf in told.values()) >= 18
    for key, leaf in told.items():
        if isinstance(leaf, dict):
            assert {"value", "kind", "source"} <= leaf.keys() <= {"value", "kind", "source", "date"}, key
            assert re.fullmatch(QUANTITY, leaf["value"]), key
            assert leaf["source"] not in ("", "written in the topology file"), key
        else:
            assert key == ".num_nodes" or (isinstance(leaf, str | bool) and not re.match(QUANTITY, str(leaf))), key


@pytest.mark.parametrize("name", topology_names())
def test_shares_of_low_precision_are_those_of_formats_that_the_gpu_has(name: str) -> None:
    machine = load_topology(name)
    low = {key for key, share in machine.efficiency.low_precision if share is not None}
    assert low == {"fp8", "fp4"} & set(machine.device.formats)


def test_dgx_h100_reads_as_the_driver_and_the_datasheet_say() -> None:
    device = H100.device
    assert int(device.memory.total) == 85_520_809_984  # 81559 MiB
    assert device.usable_bytes == round(79.11 * 2**30)
    assert device.products.si == pytest.approx(989.4e12)
    assert (H100.gpus_per_node, H100.gpus_per_host, H100.max_gpus) == (8, 8, None)
    assert load_topology("dgx-h100", num_nodes=2).max_gpus == 16


def test_a_price_is_told_with_its_day() -> None:
    price = H100.price_per_gpu_hour
    assert price is not None
    assert (price.si, price.date, price.source.split()[0]) == (2.95, "2026-05-20", "aimultiple.com")
    assert load_topology("dgx-spark").price_per_gpu_hour is None


def test_a_gpu_computes_in_the_formats_it_has() -> None:
    assert load_topology("gtx-1080-ti").device.formats == ("fp32",)
    assert load_topology("v100-32gb").device.formats == ("fp32", "fp16")
    assert load_topology("dgx-a100").device.formats == ("fp32", "tf32", "bf16", "fp16")
    assert load_topology("rtx-4090").device.formats == ("fp32", "tf32", "bf16", "fp16", "fp8")
    assert load_topology("dgx-b200").device.formats == ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")


@pytest.mark.parametrize(("name", "table"), [("dgx-b300", "b300-sxm"), ("gb300-nvl72", "gb300"),
                                             ("dgx-a100-40gb", "a100-sxm"), ("rtx-pro-6000", "rtx-pro-6000")])
def test_collectives_on_one_host_take_the_times_of_the_table(name: str, table: str) -> None:
    machine, measured = load_topology(name), load_curves(find_curves(table)).measured("all_gather", 4)
    assert measured is not None
    assert collective_ns("all_gather", 2**20, 4, machine.link(4, 1)) == measured.ns(2**20)


def test_unknown_curves_are_told_at_their_line(tmp_path: Path) -> None:
    text = (data_folder("topologies") / "rtx-pro-6000.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("curves: rtx-pro-6000", "curves: rtx-pro-600"), encoding="utf-8")
    line = 1 + text[:text.index("curves: rtx")].count("\n")
    assert f"mine.yaml:{line}: no curves 'rtx-pro-600'; did you mean rtx-pro-6000?" in told(path)


def test_cards_without_nvlink_cross_pcie() -> None:
    cards = load_topology("h100-pcie")
    assert (cards.node.nvlink, cards.node.fabric) == (None, cards.node.pcie)
    assert cards.link(8, 1).bytes_per_s == 64 * 10**9
    assert cards.link(16, 1).local == cards.node.pcie


@pytest.mark.parametrize("name", topology_names())
def test_a_small_job_runs_on_every_machine(name: str) -> None:
    """A tiny Llama on two GPUs, or on one where there are no two, within memory and slower than the peak allows."""
    machine = load_topology(name)
    ranks = min(machine.max_gpus or 2, 2)
    compute = next(name for name in ("bf16", "fp16", "fp32") if name in machine.device.formats)
    report = simulate(small.scenario("fsdp2", {"dp_shard": ranks}, model="llama-tiny", topology=name,
                                     precision={"compute": compute}))
    assert report.problems == ()
    assert report.verdict == "fits"
    assert report.capacity_bytes == machine.device.usable_bytes
    assert report.time is not None
    assert 0 < report.time.step_s < 1
    assert 0 < report.time.mfu < 1
    assert report.time.cost is not None
    priced = machine.price_per_gpu_hour is not None
    assert (report.time.cost.per_million_tokens is not None) == priced
    assert report.time.cost.note == ("" if priced else f"no price: {name} has no price_per_gpu_hour")


def test_half_a_price_list_is_no_price(tmp_path: Path) -> None:
    """One line, without its date: told at its line."""
    text = told(edited(tmp_path, ('price_per_gpu_hour: {', 'price_per_gpu_hour: "2.95 USD/h" #{')))
    assert text.startswith(str(tmp_path / "mine.yaml"))
    assert text.endswith("price_per_gpu_hour.date: is missing")


def test_no_collective_is_faster_than_its_link(tmp_path: Path) -> None:
    text = told(edited(tmp_path, ('all_gather: {value: "34.8 GB/s"', 'all_gather: {value: "348 GB/s"')))
    assert re.match(rf"{re.escape(str(tmp_path))}/mine\.yaml:\d+: network\.bus_bandwidth: all_gather: 348 GB/s", text)
    assert text.endswith("is more than the link carries (bandwidth: 50 GB/s)")


def test_no_measured_curve_is_faster_than_its_link(tmp_path: Path) -> None:
    """Curves of another machine: an all-gather of GB200s between cards on PCIe 4.0."""
    found = told(edited(tmp_path, ("name: rtx-4080", "name: mine"),
                        ("    bus_bandwidth:", "    curves: gb200\n    bus_bandwidth:"), source="rtx-4080"))
    assert re.match(rf"{re.escape(str(tmp_path))}/mine\.yaml:\d+: node\.pcie\.curves: all_gather of 2 ranks, ", found)
    assert found.endswith("is more than the link carries (bandwidth: 32 GB/s): a curve of another machine?")


def test_a_curve_may_reach_its_link(tmp_path: Path) -> None:
    """An all-reduce of 2 ranks sends each byte once: 32 GB/s is 31.25 us a MB, of which a ns less is too fast."""
    for microseconds, passes in (("31.25", True), ("31.24", False)):
        tmp_path.joinpath("c.yaml").write_text(
            "machine: two cards\nnccl: '2.30'\nsource: ours\ncurves:\n  all_reduce: |\n    bytes 2\n    1000 5.0\n"
            f"    1000000 {microseconds}\n", encoding="utf-8")
        text = edited(tmp_path, ("name: rtx-4080", "name: mine"),
                      ("    bus_bandwidth:", "    curves: c.yaml\n    bus_bandwidth:"), source="rtx-4080")
        with contextlib.nullcontext() if passes else pytest.raises(InputError, match="all_reduce of 2 ranks, 1000000"):
            load_topology(text)


def test_switches_that_sum_send_every_byte_of_an_all_reduce_once(tmp_path: Path) -> None:
    plain = load_topology("dgx-h100").node.nvlink
    assert plain is not None
    for sums, value, passes in ((True, 1.9, True), (True, 2.1, False), (False, 1.1, False)):
        rate = {"value": f"{450 * value:g} GB/s", "kind": "measured", "source": "somebody"}
        written = plain.model_dump() | {"sums_in_switch": sums, "bus_bandwidth": plain.bus_bandwidth.model_dump() | {
            "all_reduce": rate}}
        with contextlib.nullcontext() if passes else pytest.raises(ValueError, match="more than the link carries"):
            Fabric.model_validate(written)


def test_two_fabrics_in_a_node_are_refused(tmp_path: Path) -> None:
    text = edited(tmp_path, ("name: dgx-h100", "name: mine")).read_text(encoding="utf-8")
    inside = text.partition("  nvlink:\n")[2].partition("  host_memory:")[0]
    path = tmp_path / "both.yaml"
    path.write_text(text.replace("  nvlink:\n", f"  pcie:\n{inside}  nvlink:\n"), encoding="utf-8")
    assert "node: a node of several GPUs needs the one link between them: nvlink or pcie" in told(path)
    path.write_text(text.replace(f"  nvlink:\n{inside}", ""), encoding="utf-8")
    assert "node: a node of several GPUs needs the one link between them: nvlink or pcie" in told(path)


def test_nvl72_is_one_node_of_eighteen_hosts() -> None:
    assert (NVL72.gpus_per_node, NVL72.gpus_per_host) == (72, 4)
    assert NVL72.link(72, 1).name == "nvlink"
    assert (NVL72.link(64, 1, 256).name, NVL72.link(64, 1, 320).name) == ("nvlink", "nvlink")  # 64 of each domain
    assert NVL72.link(64, 1, 136).name == "network"  # 34 hosts, 17 of each domain: the second group lies in two
    assert (NVL72.gpus_taken(280), NVL72.bounded(4).gpus_taken(280)) == (56, 72)  # 70 hosts: 5 of 14, or what there is
    assert NVL72.gpus_taken(76) == 72  # 19 hosts: whole domains, and what is left
    assert NVL72.link(4, 36).name == "network"


def test_a_queue_gives_out_a_part_of_each_node() -> None:
    part = NVL72.narrowed(64)
    assert (part.gpus_per_node, part.gpus_per_host, part.node.gpus.kind) == (64, 4, NVL72.node.gpus.kind)
    assert (NVL72.narrowed(2).gpus_per_node, NVL72.narrowed(2).gpus_per_host) == (2, 2)
    assert (part.link(64, 1, 136).name, NVL72.link(64, 1, 136).name) == ("nvlink", "network")
    for wrong in (73, 6):
        with pytest.raises(InputError, match=f"{wrong}: expected at most 72, in whole hosts of 4"):
            NVL72.narrowed(wrong)


def test_unknown_name_lists_the_known_ones_and_suggests() -> None:
    with pytest.raises(InputError, match=r"did you mean dgx-h100\?") as error:
        load_topology("dgx-h10")
    assert all(name in str(error.value) for name in BUILT_IN)


def test_a_path_is_read_too(tmp_path: Path) -> None:
    path = edited(tmp_path, ("name: dgx-h100", "name: mine"), ("{value: \"8 GPU\", kind: datasheet, source: "
                  "\"NVIDIA DGX H100 datasheet\"}", "4 GPU"))
    topology = load_topology(path)
    assert (topology.name, topology.gpus_per_node, topology.node.gpus.kind) == ("mine", 4, "assumed")


@pytest.mark.parametrize(("old", "new", "message"), [
    ('"450 GB/s"', '"0 GB/s"', "node.nvlink.bandwidth: must be more than zero"),
    ('"450 GB/s"', '"450"', "node.nvlink.bandwidth: expected a number with the unit B/s"),
    ('"450 GB/s"', '"450 GiB"', "node.nvlink.bandwidth: expected a quantity in B/s"),
    ('"450 GB/s"', '"-450 GB/s"', "node.nvlink.bandwidth: expected no negative quantity, got '-450 GB/s'"),
    ('"450 GB/s"', '"3600 Gb/s"', "node.nvlink.bandwidth: expected a quantity in B/s (such as '450 GB/s'), got "
     "'3600 Gb/s': b is a bit, and 8 Gb/s are 1 GB/s"),
    ('"5.22 us"', '"-5.22 us"', "node.nvlink.latency: expected no negative quantity, got '-5.22 us'"),
    ('"5.22 us"', '"5.22"', "node.nvlink.latency: expected a number with the unit s (such as '5 us'), got '5.22'"),
    ('"81559 MiB"', '"80 gib"', "device.memory.total: expected a quantity in B (such as '80 GiB'), got '80 gib': GB is "
     "1e9 bytes, GiB is 2**30, spelled so"),
    ('"81559 MiB"', '"80 GB"', "device.memory: expected context < usable <= total, got 525.47 MiB, 79.11 GiB, 74.51 "
     "GiB (GB is 1e9 bytes, GiB is 2**30)"),
    ("  nvlink:", "  ethernet:", "node.ethernet: unknown key"),
    ("  nvlink:", "  pcie:\n    bandwidth: 64 GB/s\n  nvlink:", "node.pcie.latency: is missing"),
    ('date: "2026-05-20", ', "", "price_per_gpu_hour.date: is missing"),
    ('"2026-05-20"', '"20 May"', "price_per_gpu_hour.date: expected a day or a month in quotes, such as '2026-05-20' "
     "or '2026-05', got '20 May'"),
    ('"2026-05-20"', "20260520", "price_per_gpu_hour.date: expected a day or a month"),
    ('"2.95 USD/h"', '"2.95 USD"', "price_per_gpu_hour: expected a quantity in USD/h"),
    ('"2.95 USD/h"', '"0 USD/h"', "price_per_gpu_hour: must be more than zero"),
    ('"700 W"', '"700"', "device.power: expected a number with the unit W"),
    ('"3.35 TB/s"', "3", "device.memory_bandwidth: expected a number with the unit B/s"),
    ('"3.35 TB/s"', '"1e999 TB/s"', "device.memory_bandwidth: must be"),
    ("efficiency: h100", "efficiency: h10", "mine.yaml:19: no efficiency 'h10'; did you mean h100?"),
    ("efficiency: h100", "efficiency: 7", "efficiency: expected the name or path of an efficiency file, got 7"),
    ("efficiency: h100\n", "", "efficiency: is missing"),
    ('"79.11 GiB"', '"99 GiB"', "device.memory: expected context < usable <= total"),
    ("  hop_latency", "  hop_latenzy", "node.nvlink.hop_latenzy: unknown key"),
    ("  num_sms", "  num_sm", "device.num_sms: is missing"),
    ('"8 GPU"', '"0 GPU"', "node.gpus: must be"),
    ("network:", "num_nodes: 0\nnetwork:", "num_nodes"),
    ("network:", "num_nodes: true\nnetwork:", "num_nodes"),
    ("kind: datasheet", "kind: hearsay", "kind"),
])
def test_wrong_files_are_told_where_and_what(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = told(edited(tmp_path, (old, new)))
    assert message in text
    assert "mine.yaml:" in text


RATES = [(name, number, line.split('"')[1]) for name in ("dgx-h100", "h100-pcie") for number, line in enumerate(
    (data_folder("topologies") / f"{name}.yaml").read_text(encoding="utf-8").splitlines(), 1) if "B/s\"" in line]


@pytest.mark.parametrize(("name", "number", "value"), RATES, ids=str)
def test_no_link_and_no_memory_is_without_bandwidth(tmp_path: Path, name: str, number: int, value: str) -> None:
    lines = (data_folder("topologies") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    for wrong, why in (("0 GB/s", "must be more than zero"), (f"-{value}", "expected no negative quantity")):
        changed = [*lines[:number - 1], lines[number - 1].replace(value, wrong), *lines[number:]]
        path = tmp_path / "mine.yaml"
        path.write_text("\n".join(changed), encoding="utf-8")
        assert re.fullmatch(rf".*mine\.yaml:{number}: [a-z_.]+: {why}, got '{wrong}'", told(path))


def test_all_mistakes_are_told_together(tmp_path: Path) -> None:
    text = told(edited(tmp_path, ('"450 GB/s"', '"0 GB/s"'), ('"50 GB/s"', '"0 GB/s"')))
    assert "node.nvlink.bandwidth" in text
    assert "network.bandwidth" in text


def test_what_kernels_reach_is_no_topology() -> None:
    assert H100.efficiency == load_topology("dgx-h200").efficiency == load_efficiency("h100")
    assert not set(topology_names()) & set(efficiency_names())


def test_an_efficiency_is_looked_for_beside_the_topology_that_names_it(tmp_path: Path) -> None:
    built_in = (data_folder("topologies") / "efficiency" / "b200.yaml").read_text(encoding="utf-8")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "measured.yaml").write_text(built_in, encoding="utf-8")
    path = edited(tmp_path, ("efficiency: h100", "efficiency: ours/measured.yaml"))
    assert load_topology(path).efficiency == load_efficiency("b200")


def test_more_ranks_than_gpus_are_refused() -> None:
    two = load_topology("dgx-h100", num_nodes=2)
    two.check_world_size(16)
    with pytest.raises(InputError, match="17 ranks do not fit"):
        two.check_world_size(17)
    with pytest.raises(InputError, match="32 ranks do not fit"):
        two.link(4, 8)
    with pytest.raises(InputError, match="2 ranks do not fit"):
        ONE.link(2, 1)


@pytest.mark.parametrize("num_nodes", [0, -1])
def test_no_nodes_are_refused(num_nodes: int) -> None:
    with pytest.raises(InputError):
        load_topology("dgx-h100", num_nodes=num_nodes)


def test_a_file_that_bounds_itself_cannot_be_widened() -> None:
    with pytest.raises(InputError, match="not 2"):
        load_topology("h100-1gpu", num_nodes=2)


@pytest.mark.parametrize(("group_size", "stride", "name", "ranks_per_node", "num_nodes"), [
    (1, 1, "self", 1, 1),
    (8, 1, "nvlink", 8, 1),
    (2, 4, "nvlink", 2, 1),
    (2, 8, "network", 1, 2),
    (16, 1, "network", 8, 2),
    (4, 4, "network", 2, 2),
    (9, 1, "network", 1, 2),  # eight in the first node, one in the second
    (12, 1, "network", 4, 2),
    (2, 5, "network", 1, 2),  # {0, 5} is inside a node, {3, 8} is not
    (4, 3, "network", 1, 2),  # {2, 5}, {8, 11}, and {1, 4, 7}, {10}
    (128, 8, "network", 1, 128),
    (16384, 8, "network", 1, 16384),
    (131072, 1, "network", 8, 16384),
])
def test_link_of_a_group(group_size: int, stride: int, name: str, ranks_per_node: int, num_nodes: int) -> None:
    link = H100.link(group_size, stride)
    assert (link.name, link.ranks_per_node, link.num_nodes) == (name, ranks_per_node, num_nodes)


def test_the_world_decides_whether_groups_of_three_cross() -> None:
    assert H100.link(3, 1).name == "nvlink"
    assert H100.link(3, 1, world_size=6).name == "nvlink"
    assert H100.link(3, 1, world_size=9).name == "network"  # {6, 7, 8}


def worst(gpus_of_a_node: int, groups: Iterable[Sequence[int]]) -> tuple[int, int]:
    """(nodes, fewest members in one of them) of the group that is worst off, member by member."""
    spreads = []
    for ranks in groups:
        members = Counter(rank // gpus_of_a_node for rank in ranks)
        spreads.append((len(members), min(members.values())))
    return max(spreads, key=lambda spread: (spread[0] > 1, -spread[1], spread[0]))


def brute_force(topology: Topology, group_size: int, stride: int, num_blocks: int) -> tuple[int, int]:
    bases = (block * group_size * stride + offset for block in range(num_blocks) for offset in range(stride))
    taken = topology.gpus_taken(group_size * stride * num_blocks)
    return worst(taken, (range(base, base + group_size * stride, stride) for base in bases))


@settings(max_examples=40, deadline=None)
@given(group_size=st.integers(2, 40), stride=st.integers(1, 80), num_blocks=st.integers(1, 9))
def test_link_agrees_with_counting_members(group_size: int, stride: int, num_blocks: int) -> None:
    for topology in (H100, NVL72):
        link = topology.link(group_size, stride, world_size=group_size * stride * num_blocks)
        assert (link.num_nodes, link.ranks_per_node) == brute_force(topology, group_size, stride, num_blocks)


@pytest.mark.parametrize("row", [row for file in truth_cases.GROUPS for row in truth_cases.rows(file)],
                         ids=lambda row: "-".join(f"{axis}{size}" for axis, size in row["mesh"].items()))
def test_links_are_those_that_the_groups_of_real_frameworks_cross(row: dict[str, Any]) -> None:
    """The link that a group crosses is no input: it follows from the ranks that the framework puts into it."""
    mesh, fours = Mesh(**row["mesh"]), load_topology("rtx-a6000").model_copy(update={"network": H100.network,
                                                                                     "num_nodes": None})
    for name, groups in row["groups"].items():
        axis = mesh.axis(name)
        for topology in (H100, fours):
            link = topology.link(axis.size, axis.stride, mesh.size)
            assert (link.num_nodes, link.ranks_per_node) == worst(topology.gpus_taken(mesh.size), groups), name


def test_tensor_expert_and_data_parallel_groups_cross_different_links() -> None:
    """32 ranks on 4 nodes: TP of 4 stays inside, EP of 16 fills two nodes, FSDP has two ranks in each of four."""
    mesh = Mesh(dp_shard=8, tp=4, ep=16)
    axes = [mesh.axis(name) for name in ("tp", "ep", "dp_shard")]
    links = [H100.link(axis.size, axis.stride, mesh.size) for axis in axes]
    assert [(link.name, link.num_nodes, link.ranks_per_node) for link in links] == [
        ("nvlink", 1, 4), ("network", 2, 8), ("network", 4, 2)]
    inside, two, four = (collective_ns("all_gather", 2**28, axis.size, link)
                         for axis, link in zip(axes, links, strict=True))
    assert inside < two < four / 2


def test_ranks_wait_longer_where_nodes_are_smaller_than_their_groups(tmp_path: Path) -> None:
    """The same scenario on nodes of 8 and of 4: tensor parallelism of 8 crosses the network there, of 4 does not."""
    path = edited(tmp_path, ("name: dgx-h100", "name: mine"), ('"8 GPU"', '"4 GPU"'))

    def waited(tp: int, topology: str) -> float:
        report = simulate(small.scenario("megatron", {"tp": tp}, model=WIDE, topology=topology, seq_len=4096))
        assert report.time is not None
        return report.time.exposed_communication_s

    assert waited(8, str(path)) > 1.2 * waited(8, "dgx-h100")
    assert waited(4, str(path)) == waited(4, "dgx-h100")


def test_messages_cross_nodes_where_any_two_neighbouring_stages_do(tmp_path: Path) -> None:
    """Stages of 4 ranks on nodes of 8: the first and the second share a node, the second and the third do not."""
    path = edited(tmp_path, ("name: dgx-h100", "name: mine"), ('"8 GPU"', '"16 GPU"'))

    def step(pp: int, topology: str) -> float:
        report = simulate(small.scenario("megatron", {"tp": 4, "pp": pp}, model=WIDE, topology=topology, seq_len=8192,
                                         micro_batch_size=4))
        assert report.time is not None
        return report.time.step_s

    assert step(4, "dgx-h100") > 1.02 * step(4, str(path))
    assert step(2, "dgx-h100") == step(2, str(path))


def test_a_network_link_knows_the_level_inside_its_nodes() -> None:
    link = H100.link(16, 1)
    assert (link.bytes_per_s, link.fabric, link.local) == (50 * 10**9, H100.network, H100.node.nvlink)
    assert isinstance(hash(link), int)
    assert Link("nvlink", 1, 0.0, 2, 1) != link


def test_a_file_that_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topology, and what it names; a relative path means another file in another folder."""
    shipped = data_folder("topologies")
    texts = {name: (shipped / source).read_text(encoding="utf-8") for name, source in (
        ("t.yaml", "dgx-h100.yaml"), ("e.yaml", "efficiency/h100.yaml"), ("c.yaml", "nccl/h100-sxm.yaml"))}
    texts["t.yaml"] = texts["t.yaml"].replace("efficiency: h100", "efficiency: e.yaml").replace("h100-sxm", "c.yaml")

    def answers(folder: str, **changed: tuple[str, str]) -> tuple[str, float, int]:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        for name, text in texts.items():
            old, new = changed.get(name[0], ("", ""))
            assert old in text
            Path(name).write_text(text.replace(old, new, 1), encoding="utf-8")
        topology = load_topology("t.yaml")
        time = collective_ns("all_gather", 2**20, 8, topology.link(8, 1, 8))
        return topology.device.name, topology.efficiency.overlap.contention.si, time

    first = answers("a")
    assert answers("a") == first
    assert answers("a", t=("NVIDIA H100 80GB HBM3", "mine")) == ("mine", *first[1:])
    assert answers("a", e=(H100.efficiency.overlap.contention.value, "49%")) == (first[0], 0.49, first[2])
    assert answers("a", c=("17.13", "50.00")) == (*first[:2], 50_000)
    assert answers("b", t=("NVIDIA H100 80GB HBM3", "other")) == ("other", *first[1:])
