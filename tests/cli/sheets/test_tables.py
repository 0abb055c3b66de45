"""Tables of placement and of two results side by side, as they are printed."""

from __future__ import annotations

import io

from rich.console import Console

from fakes import rank, report
from simcore.cli.sheets.tables import advice, drawn, hosts, placement
from simcore.results.quantiles import Drawn, DrawnLengths, DrawnPeak, Quantiles
from simcore.results.report import Advice, Host, HostPhase


def shown(*parts: object, width: int = 240) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(*parts, sep="\n")
    return stream.getvalue()


def test_placement_lists_components_padding_and_total() -> None:
    text = shown(*placement(report(ranks=(rank(None, apportioned=True),))))
    assert "ranks 0-3 (4 alike), stage 0, pp=0 dp_shard=0-3" in text
    assert "apportioned" in text
    total = next(line for line in text.splitlines() if line.strip().startswith("total"))
    for word in ("2,147,483,648", "536,870,912", "4.00 GiB", "1.00 GiB", "2.00 GiB", "7.00 GiB"):
        assert word in total
    assert "1.00 KiB" in text


def test_draws_are_told_in_a_line() -> None:
    sizes = Quantiles(p50=2**30, p90=2 * 2**30, p99=3 * 2**30, max=4 * 2**30)
    made = Drawn(seed=7, draws=1000, concentration=None, num_groups=1, num_microbatches=1, balanced_rows=1, received=(),
                 hottest=DrawnPeak(allocated_bytes=sizes, device_bytes=sizes), oom_probability=0.032, exact=True)
    (line,) = shown(*drawn(report("a", 100, drawn=made))).splitlines()
    assert "1,000 times (seed 7): highest rank p50 1.00 GiB, p90 2.00 GiB, p99 3.00 GiB, max 4.00 GiB" in line
    assert line.endswith("does not fit in 3.2% of the draws")
    assert drawn(report("a", 100)) == []


def test_lengths_are_told_in_a_line() -> None:
    lengths = Quantiles(p50=100, p90=200, p99=1000, max=2048)
    sizes = Quantiles(p50=2**30, p90=2 * 2**30, p99=3 * 2**30, max=4 * 2**30)
    made = DrawnLengths(seed=7, draws=50, batch=lengths, step=lengths, fits=(100,),
                        peak=DrawnPeak(allocated_bytes=sizes, device_bytes=sizes))
    (line,) = shown(*drawn(report("a", 100, lengths=made))).splitlines()
    assert line == ("a: longest of a step, 50 drawn (seed 7): p50 100 tokens: 1.00 GiB, p90 200 tokens: 2.00 GiB, "
                    "p99 1,000 tokens: 3.00 GiB, max 2,048 tokens: 4.00 GiB")


def test_hosts_are_told_where_they_do_not_fit() -> None:
    fine = HostPhase(phase="first_step", host_bytes=0, device_bytes=1, host_verdict="fits", device_verdict="oom",
                     by_owner={})
    full = HostPhase(phase="load", host_bytes=3 * 2**30, device_bytes=2**30, host_verdict="oom", device_verdict="oom",
                     by_owner={"whole model": 2 * 2**30, "checkpoint": 2**30})
    told = report("a", 100, host=Host(capacity_bytes=2 * 2**30, ranks_per_host=8, phases=(full, fine)))
    assert shown(*hosts(told)).splitlines() == [
        "a: load: OOM on the host of 8 ranks: 3.00 GiB of 2.00 GiB, most of it whole model",
        "a: load: OOM on the device: 1.00 GiB of 80.00 GiB"]
    alone = report("a", 100, host=Host(capacity_bytes=2 * 2**30, ranks_per_host=1, phases=(full,)))
    assert "OOM on the host of 1 rank: 3.00 GiB" in shown(*hosts(alone))
    assert hosts(report("a", 100)) == []


def test_phases_that_are_asked_for_are_told_where_they_fit_too() -> None:
    fits = HostPhase(phase="merge", host_bytes=2**30, device_bytes=2**31, host_verdict="fits", device_verdict="fits",
                     by_owner={})
    full = HostPhase(phase="evaluation", host_bytes=0, device_bytes=2**33, host_verdict="fits", device_verdict="oom",
                     by_owner={}, seconds=2.0, change={"evaluation.micro_batch_size": 4})
    told = report("a", 100, host=Host(capacity_bytes=2 * 2**30, ranks_per_host=8, phases=(full, fits)))
    assert shown(*hosts(told)).splitlines() == [
        "a: evaluation: device 8.00 GiB, host 0 B, takes 2 s",
        "a: evaluation: OOM on the device: 8.00 GiB of 80.00 GiB",
        "a: evaluation: --set evaluation.micro_batch_size=4 makes it fit", "a: merge: device 2.00 GiB, host 1.00 GiB"]


def test_advice_is_a_line_a_change() -> None:
    change = {"training.recompute": ["moe", "mlp"], "framework_options.overlap": True, "mesh.ep": 8}
    made = Advice(changes=change, verdict="fits", peak_bytes=60 * 2**30, headroom_bytes=20 * 2**30)
    head, line = shown(*advice(report("odd\x1b[31m", 100, advice=(made,)), 240)).splitlines()
    assert "what would make it fit" in head
    assert "\x1b" not in head
    assert line == ("  fits    peak  60.00 GiB, left  20.00 GiB  --set 'training.recompute=[\"moe\",\"mlp\"]' "
                    "--set framework_options.overlap=true --set mesh.ep=8")
    nearest = made.model_copy(update={"verdict": "oom", "headroom_bytes": -(2**30)})
    assert "not enough; nearest" in shown(*advice(report("a", 100, advice=(nearest,)), 240))
    assert advice(report("a", 100), 240) == []


def test_a_narrow_terminal_folds_names_and_cuts_none() -> None:
    text = shown(*placement(report(ranks=(rank(None),))), width=50)
    assert "\u2026" not in text
    assert "routed_experts" in "".join(line.split()[0] for line in text.splitlines() if line.strip())
