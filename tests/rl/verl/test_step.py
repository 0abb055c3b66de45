"""A step of verl's workers: what torch keeps of a state dict, who is where in each phase, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.results.report import Report
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import ENGINE, POLICY, REFERENCE
from simcore.rl.verl.step import Offloads, Summoned, summoned, verl_step
from simcore.rl.verl.streams import Shared
from simcore.simulate import simulate
from small import plan_of
from vllm.test_engine import H100

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/verl/torch-2.13.0.json").read_text(encoding="utf-8"))
SMALL = {"config": "llama-tiny", "overrides": TRUTH["llama"]}
BASE: dict[str, Any] = {
    "name": "v", "workload": "grpo", "model": "llama-tiny", "framework": "fsdp1", "topology": "dgx-h100",
    "mesh": {"dp_shard": 8}, "training": {"seq_len": 256, "global_batch_size": 16, "loss": "flash",
                                          "precision": {"params": "fp32", "grad_reduce": "fp32"}},
    "rl": {"trainer": "verl", "prompts": 4, "generations": 8, "reference": "host"},
    "generation": {"tp": 1, "gpu_memory_utilization": 0.6, "max_model_len": 256, "sleep_level": 2},
}  # fmt: skip
STATE = Summoned(kept=3 * GIB, transient=2 * GIB, calls=(), part=GIB // 2)


def asked(**changed: Any) -> Scenario:
    """`changed`: keys with a block's name before them (`rl__reference`)."""
    data = json.loads(json.dumps(BASE))
    for name, value in changed.items():
        block, _, key = name.partition("__")
        if key:
            data[block][key] = value
        else:
            data[block] = value
    return parse_scenario(parse_document(json.dumps(data), "v.json"))


def step(*, params: bool, optimizer: bool, **given: Any) -> Journal:
    given.setdefault("sleep_level", 2)
    return verl_step(POLICY_OF, turn(**given), H100, (Offloads(params, optimizer, Shared(2 * GIB), passes=4), STATE))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_a_state_dict_keeps_what_torch_keeps(ranks: int) -> None:
    """Kept, and the most at once, to the byte: the embedding is larger than a layer."""
    found = summoned(plan_of("fsdp1", {"dp_shard": ranks}, model=SMALL, implementation="hf",
                             precision={"params": "fp32"}))
    real = TRUTH["state_dict"][str(ranks)]
    assert (found.kept, found.kept + found.transient) == (real["kept"], real["highest"])
    assert sum(call.num_bytes for call in found.calls) == (real["kept"] * ranks if ranks > 1 else 0)


def test_what_is_not_offloaded_stays_while_tokens_are_generated() -> None:
    stays, goes, parts = (step(params=params, optimizer=optimizer) for params, optimizer in (
        (False, False), (True, True), (True, False)))
    assert [owned(one, "generation", POLICY) // GIB for one in (stays, goes, parts)] == [10, 1, 7]
    assert owned(goes, "generation", POLICY, "host") == 9 * GIB
    assert [phase.phase for phase in stays.phases] == ["refit", "generation", "logprob", "reference", "training"]
    assert owned(stays, "training", POLICY) == owned(goes, "training", POLICY) == 30 * GIB


def test_the_reference_policy_is_a_model_on_the_host_beside_the_policy() -> None:
    stays, goes = step(params=False, optimizer=False), step(params=True, optimizer=True)
    assert owned(stays, "reference", POLICY) == 10 * GIB
    assert owned(goes, "reference", POLICY) == GIB
    assert owned(stays, "reference", REFERENCE) == 2 * GIB + GIB // 2
    copied = stays.phases[3].copied["to_device"]
    assert (copied.calls, copied.num_bytes) == (1, 4 * 3 * GIB)


def test_a_refit_has_the_state_dict_the_buffer_and_its_copy_beside_the_engines_weights() -> None:
    journal = step(params=True, optimizer=True)
    moment = journal.phases[0]
    assert owned(journal, "refit", ENGINE) > 0
    streamed = [entry for entry in journal.entries if entry.phase == 0 and entry.spike]
    held = max((entry.held for entry in streamed), key=lambda one: one["refit", "buffer"])
    assert held["refit", "buffer"] == 4 * GIB
    assert held["policy, state dict", "sharded_param"] == 3 * GIB
    assert held[POLICY, "sharded_param"] == 0
    assert not any(name == "policy, state dict" for name, _ in journal.phases[1].device)
    assert moment.phase == "refit"


def test_an_engine_that_frees_no_cache_stays_as_it_is() -> None:
    awake, asleep = step(params=False, optimizer=False, sleep_level=0), step(params=False, optimizer=False)
    assert owned(awake, "training", ENGINE) - owned(asleep, "training", ENGINE) > 40 * GIB


def test_a_step_ends_to_end_counts_every_byte() -> None:
    result: Report = simulate(asked())
    rank = result.ranks[0]
    assert rank.peak is not None
    assert sum(rank.peak.by_category.values()) == rank.peak.allocated_bytes
    for phase in result.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    sources = {row.source for row in result.assumptions}
    assert any("verl b178a3cd workers/fsdp_workers.py" in source for source in sources)
    assert not any("dtensor_params_generator" in source for source in sources)


def test_offloading_costs_copies_and_saves_memory() -> None:
    stays, goes = simulate(asked()), simulate(asked(rl__param_offload=True, rl__optimizer_offload=True))
    of = [{phase.phase: phase for phase in report.phases} for report in (stays, goes)]
    assert of[0]["generation"].device_bytes > of[1]["generation"].device_bytes
    assert stays.time is not None
    assert goes.time is not None
    assert goes.time.step_s > stays.time.step_s


@pytest.mark.parametrize(("told", "changed"), [
    ("grpo under ddp (served: fsdp1", {"framework": "ddp", "training__loss": "hf", "mesh": {"dp_replicate": 8}}),
    ("params: an actor on the host, but between", {"training__offload": dict.fromkeys(
        ("params", "gradients", "optimizer"), "host"), "framework_options": {"sync_gradients": "last"}}),
    ("adapters of verl that are no units", {"training__method": "lora", "framework_options": {
        "use_orig_params": True}}),
    ("verl's step with another loss than flash", {"training__loss": "hf"}),
    ("verl's engine on GPUs of its own", {"generation__colocated": False, "generation__engines": 8}),
    ("refit_buffer: changes nothing with trainer: verl", {"rl__refit_buffer": 0.5}),
    ("param_offload: changes nothing with trainer: nemo_rl", {
        "rl__trainer": "nemo_rl", "rl__param_offload": True, "framework": "fsdp2", "training__loss": "hf"}),
    ("grpo under fsdp1 (served: automodel", {"rl__trainer": "nemo_rl"}),
    ("is too large to fit in the bucket", {"model": "qwen2.5-0.5b", "rl__refit_bucket": 100}),
    ("sleep_level: 1: expected 2, or 0", {"generation__sleep_level": 1})])
def test_what_verls_workers_do_not_do_is_refused(told: str, changed: dict[str, Any]) -> None:
    assert any(told in str(problem) for problem in simulate(asked(**changed)).problems)


def test_an_entropy_that_is_not_compiled_makes_three_tensors_of_the_logits_in_a_pass() -> None:
    """256 tokens of 64,000 words, 12 bytes each; the reference policy's passes have no entropy."""
    model = {"config": "llama-tiny", "overrides": {"vocab_size": 64000}}
    plain, eager = (simulate(asked(training__loss=loss, model=model)) for loss in ("flash", "flash_eager"))
    of = [{phase.phase: phase.by_category for phase in report.phases} for report in (plain, eager)]
    logits = 256 * 64000
    assert of[1]["logprob"]["activation"] - of[0]["logprob"]["activation"] == pytest.approx(12 * logits, abs=2 * logits)
    assert of[0]["reference"] == of[1]["reference"]
    assert of[0]["training"] == of[1]["training"]


def test_answers_of_padded_rows_are_copied_and_make_three_tensors_in_fp32() -> None:
    """192 of 256 tokens are the answer's: 9 bytes each of all logits, and 1.5 of a copy."""
    model = {"config": "llama-tiny", "overrides": {"vocab_size": 64000}}
    given = {"model": model, "rl__prompt_tokens": 64, "rl__logprob_batch_size": 2}
    plain, padded = (simulate(asked(training__loss=loss, **given)) for loss in ("flash", "flash_padded"))
    of = [{phase.phase: phase.by_category["activation"] for phase in report.phases if "activation" in phase.by_category}
          for report in (plain, padded)]
    logits = 2 * 256 * 64000
    assert of[1]["logprob"] - of[0]["logprob"] == pytest.approx(9 * logits, abs=logits / 10)
    assert of[1]["reference"] - of[0]["reference"] == pytest.approx(1.5 * logits, abs=logits / 10)
