"""Advice for a scenario that does not fit: every reported change is one that the engine was asked about."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any

import pytest

import small
from rl.test_workload import GRPO
from rl.test_workload import asked as asked_in_phases
from simcore.batch import advice
from simcore.batch.advice import advise, work
from simcore.cli.sheets.tables import advice as advice_lines
from simcore.inputs.loading import changed, load
from simcore.inputs.scenario import Scenario
from simcore.results.detail import MAX_DETAILED
from simcore.simulate import rows_of, simulate
from test_scenarios import SCENARIOS

KEPT = SCENARIOS / "nano-ep4" / "automodel-8gpu-cp2-kept.yaml"
FULL = ("training.method=full", "sweep=null")


def kept(*overrides: str) -> Scenario:
    return load(KEPT, [*FULL, *overrides])[0]


def limited(framework: str, share: float, mesh: dict[str, int] | None = None, **given: Any) -> Scenario:
    """A small scenario on devices with that share of what it takes."""
    asked = small.scenario(framework, mesh, **given)
    rank = simulate(asked, timed=False).peak_rank
    assert rank is not None
    assert rank.peak is not None
    return changed(asked, {"limits.usable_memory": f"{int(rank.peak.device_bytes * share)} B"})


def test_changes_are_ordered_by_what_a_user_loses() -> None:
    """Time comes first, then GPUs, then numerics; within each the shortest step."""
    found = advise(kept())
    assert [row.verdict for row in found] == ["fits"] * len(found)
    assert 3 <= len(found) <= 5
    assert {"framework_options.defer_fsdp_grad_sync": False} in [row.changes for row in found]
    costs = [(bool(row.warning), row.num_gpus != kept().world_size, row.step_s) for row in found]
    assert costs == sorted(costs)
    assert [row.warning for row in found if "training.precision.grad_reduce" in row.changes] == [
        "gradients are summed in bf16"]


def test_each_number_is_what_the_changed_scenario_gives() -> None:
    for one in advise(kept()):
        report = simulate(changed(kept(), one.changes), timed=False)
        assert report.peak_rank is not None
        assert report.peak_rank.peak is not None
        assert (report.verdict, report.peak_rank.peak.device_bytes, report.headroom_bytes) == (
            one.verdict, one.peak_bytes, one.headroom_bytes)


def test_each_time_is_that_of_the_changed_scenario() -> None:
    for one in advise(kept()):
        time = simulate(changed(kept(), one.changes)).time
        assert time is not None
        assert one.step_s == time.step_s


def test_the_lines_can_be_pasted_behind_the_command() -> None:
    asked = limited("megatron", 0.97, {"dp_shard": 2}, seq_len=2048)
    report = work(1, asked=None)(asked)
    told = advice_lines(report, 1000)
    assert len(told) == 1 + len(report.advice) > 1
    for line, one in zip(told[1:], report.advice, strict=True):
        words = shlex.split(str(line))
        settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        assert load(KEPT, [*FULL, *settings])[0] == changed(kept(), one.changes)


@pytest.mark.parametrize("framework", small.FRAMEWORKS)
def test_only_what_lowers_the_peak_is_told(framework: str) -> None:
    asked = limited(framework, 0.98, {"dp_shard": 4}, seq_len=1024, micro_batch_size=4)
    before = simulate(asked, timed=False).peak_rank
    assert before is not None
    assert before.peak is not None
    found = advise(asked)
    assert found
    assert all(row.peak_bytes < before.peak.device_bytes for row in found)


def test_the_global_batch_stays_when_the_micro_batch_is_halved() -> None:
    asked = limited("fsdp2", 0.8, {"dp_shard": 4}, seq_len=4096, micro_batch_size=4)
    halved = [one.changes for one in advise(asked) if "training.micro_batch_size" in one.changes]
    assert halved
    assert all({"training.micro_batch_size": 2, "training.global_batch_size": 16}.items() <= one.items()
               for one in halved)


def test_two_changes_are_tried_where_one_is_not_enough() -> None:
    nano = load(SCENARIOS / "nano-ep4" / "megatron-8gpu.yaml", FULL)[0]
    found = advise(nano)
    assert all(one.verdict == "fits" for one in found)
    assert {"training.offload.optimizer": "host"} in [one.changes for one in found]
    assert {"mesh.ep": 8, "mesh.tp": 4, "mesh.dp_shard": 2} in [one.changes for one in found]
    for one in ({"mesh.ep": 8}, {"mesh.tp": 4, "mesh.dp_shard": 2}):
        assert simulate(changed(nano, one), timed=False).verdict == "oom"


def test_a_change_that_lowers_nothing_alone_is_tried_beside_one_that_moves_the_peak() -> None:
    """Recomputation moves the peak to the optimizer, whose temporaries the fused one does not make."""
    asked = small.scenario("fsdp2", {"dp_shard": 2}, seq_len=2048, model="qwen3-4b")
    fused, full = {"training.optimizer.implementation": "fused"}, {"training.recompute": "full"}
    base, alone, moved, both = (simulate(changed(asked, keys), timed=False).highest_bytes or 0
                                for keys in ({}, fused, full, {**full, **fused}))
    assert alone == base > moved > both
    between = changed(asked, {"limits.usable_memory": f"{(moved + both) // 2} B"})
    assert {**full, **fused} in [one.changes for one in advise(between)]


def test_two_changes_may_keep_the_same_global_batch() -> None:
    """So long that what is split outweighs NCCL's buffers for the ring that splits it."""
    asked = limited("megatron", 0.35, {"dp_shard": 4}, seq_len=131_072, micro_batch_size=4)
    both = {"training.micro_batch_size": 2, "training.global_batch_size": 16, "mesh.cp": 4, "mesh.dp_shard": 1}
    assert both in [one.changes for one in advise(asked)]


def test_where_nothing_is_enough_the_nearest_are_told_as_such() -> None:
    asked = load(SCENARIOS / "nano-ep4" / "megatron-4gpu.yaml", [*FULL, "limits.max_fill=0.4"])[0]
    found = advise(asked)
    assert [row.verdict for row in found] == ["oom"] * 3
    assert [row.headroom_bytes for row in found] == sorted((row.headroom_bytes for row in found), reverse=True)


def test_more_gpus_are_the_fewest_whole_nodes_with_a_batch_for_all() -> None:
    asked = limited("fsdp2", 0.9, {"dp_shard": 8}, microbatches=1, model="llama-3.1-8b", recompute="full")
    asked = changed(asked, {"topology": {"file": "dgx-h100", "num_nodes": 1}})
    (more,) = [one.changes for one in advise(asked) if "mesh.dp_shard" in one.changes]
    ranks = more["mesh.dp_shard"]
    assert ranks % 8 == 0
    assert more == {"mesh.dp_shard": ranks, "training.global_batch_size": ranks, "topology.num_nodes": ranks // 8}
    assert simulate(changed(asked, more), timed=False).verdict == "fits"
    fewer = {**more, "mesh.dp_shard": ranks - 8, "training.global_batch_size": ranks - 8,
             "topology.num_nodes": ranks // 8 - 1}
    assert simulate(changed(asked, fewer), timed=False).verdict != "fits"


def test_more_gpus_of_one_node_may_be_any_number() -> None:
    asked = limited("fsdp2", 0.9, {"dp_shard": 2}, microbatches=1, model="llama-3.1-8b", recompute="full", seq_len=64)
    (more,) = [one.num_gpus for one in advise(asked) if "mesh.dp_shard" in one.changes]
    assert more in range(3, 8)


def test_more_gpus_are_offered_beside_many_changes_that_cost_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = limited("megatron", 0.95, {"dp_shard": 4, "tp": 2}, microbatches=4, model="llama-3.1-8b")
    found = advise(asked)
    more = next(at for at, one in enumerate(found) if one.num_gpus != asked.world_size)
    assert more >= 2
    monkeypatch.setattr(advice, "_MOST", 2)
    assert advise(asked) == (found[0], found[more])


def test_a_layout_that_is_shown_with_a_doubt_is_not_advised() -> None:
    """Automodel's own check refuses tp for this model, which the report says."""
    lora = limited("automodel", 0.95, {"dp_shard": 4}, seq_len=2048, method="lora")
    assert simulate(changed(lora, {"mesh.tp": 2, "mesh.dp_shard": 2}), timed=False).status == "ok"
    assert advise(lora)
    assert not [one for one in advise(lora) if "mesh.tp" in one.changes]


def test_a_step_that_is_too_long_to_try_things_on_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(kept())
    monkeypatch.setattr(advice, "ADVISED_ROWS", rows)
    assert advise(kept())
    monkeypatch.setattr(advice, "ADVISED_ROWS", rows - 1)
    assert advise(kept()) == ()


def test_a_step_with_too_many_loads_to_draw_again_and_again_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = kept("training.routing={seed: 0, draws: 30}")
    num_loads = 30 * drawn.world_size * drawn.num_microbatches * 23  # Nano's layers with experts
    monkeypatch.setattr(advice, "ADVISED_LOADS", num_loads)
    assert advise(drawn)
    monkeypatch.setattr(advice, "ADVISED_LOADS", num_loads - 1)
    assert advise(drawn) == ()


def test_a_job_of_very_many_ranks_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding its ranks again and again takes too long: 2,097,152 of them took 48 s."""
    monkeypatch.setattr(advice, "ADVISED_RANKS", kept().world_size)
    assert advise(kept())
    monkeypatch.setattr(advice, "ADVISED_RANKS", kept().world_size - 1)
    assert advise(kept()) == ()


def test_what_fits_gets_none_and_neither_does_a_single_rank() -> None:
    fits, oom = kept("framework_options.defer_fsdp_grad_sync=false"), kept()
    assert work(1, asked=True)(fits).advice == ()
    assert work(1, asked=True)(oom).advice
    assert work(1, asked=True)(oom, rank=0).advice == ()


@pytest.mark.parametrize(("count", "asked", "given"), [(8, None, True), (9, None, False), (9, True, True),
                                                       (1, False, False)])
def test_few_scenarios_get_advice_without_being_asked(count: int, asked: bool | None, given: bool) -> None:
    assert bool(work(count, asked=asked)(kept()).advice) is given


def test_advice_goes_to_workers() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(partial(work(1, asked=True), rank=None))).func is work(1, asked=True)  # noqa: S301


def test_an_engine_that_does_not_start_is_told_how_it_would() -> None:
    asked = {"name": "s", "workload": "serve", "model": "llama-3-70b", "topology": "dgx-h100",
             "generation": {"tp": 1, "max_model_len": 8192}}
    scenario = Scenario.model_validate(asked)
    assert simulate(scenario).verdict == "oom"
    found = advise(scenario)
    assert {"generation.tp": 2, "mesh.tp": 2} in [row.changes for row in found]
    for row in found:
        assert simulate(changed(scenario, row.changes)).verdict == row.verdict == "fits"


def grpo(share: float, **given: Any) -> Scenario:
    return asked_in_phases(generation=GRPO["generation"] | {"gpu_memory_utilization": share}, **given)


def test_an_engine_that_does_not_start_beside_a_policy_gets_more_memory() -> None:
    asked = grpo(share=0.01)
    assert (found := simulate(asked)).serving is not None
    assert found.serving.refusal
    told = advise(asked)
    assert {"generation.gpu_memory_utilization": 0.3} in [row.changes for row in told]
    assert all(row.verdict == "fits" and any(key.startswith("generation.") for key in row.changes) for row in told)


def test_an_engine_that_takes_too_much_gets_less() -> None:
    told = [row.changes for row in advise(grpo(share=0.9, limits={"usable_memory": "79.11 GiB", "max_fill": 0.85}))]
    assert {"generation.gpu_memory_utilization": 0.8} in told


def test_few_scenarios_of_a_page_are_looked_at_closely() -> None:
    assert work(MAX_DETAILED, asked=False, drawn=True)(kept()).detail is not None
    assert work(MAX_DETAILED + 1, asked=False, drawn=True)(kept()).detail is None
    assert work(1, asked=False)(kept()).detail is None


def test_one_scenario_that_is_shown_keeps_its_memory_over_the_step() -> None:
    def has_memory(count: int, *, shown: bool) -> bool:
        return work(count, asked=False, shown=shown)(kept()).ranks[0].memory is not None

    assert [has_memory(1, shown=True), has_memory(1, shown=False), has_memory(2, shown=True)] == [True, False, False]
