"""Stage 0 of DeepSpeed: what rests, which optimizer wraps the given one, what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, InputError, NotYet, RankscopeError
from simcore.frameworks.deepspeed.strategy import WholeStrategy
from simcore.memory.ledger import balance
from simcore.simulate import simulate

LLAMA = "llama-tiny"


def test_everything_rests_whole_on_every_rank() -> None:
    for compute, each in (("bf16", 2 + 2 + 12), ("fp16", 2 + 2 + 12), ("fp32", 4 + 4 + 8)):
        for copies in (1, 8):
            plan = small.plan_of("zero0", {"dp_replicate": copies}, rank=copies - 1, model=LLAMA,
                                 precision={"compute": compute})
            rest = plan.at_rest().values()
            assert sum(r.params_bytes + r.grads_bytes + r.optimizer_bytes
                       for r in rest) == each * plan.graph.count(), (compute, copies)


def test_deepspeeds_own_adam_has_flat_masters_in_16_bits_alone() -> None:
    for options, compute, wanted in (({}, "bf16", (False, True)), ({"torch_adam": False}, "bf16", (True, True)),
                                     ({"torch_adam": True}, "fp16", (False, True)),
                                     ({"torch_adam": False}, "fp32", (False, False))):
        strategy = small.prepared("zero0", {"dp_replicate": 2}, model=LLAMA, options=options,
                                  precision={"compute": compute})[1].strategy
        assert strategy == WholeStrategy("dp_replicate", *wanted), (options, compute)


def test_adapters_alone_have_masters_and_gradients() -> None:
    given: dict[str, Any] = {"model": LLAMA, "method": "lora", "lora": {"rank": 4}}
    plan = small.plan_of("zero0", {"dp_replicate": 2}, **given)
    trained = plan.graph.count(trainable=True)
    assert 0 < trained < plan.graph.count() // 4
    assert sum(r.optimizer_bytes for r in plan.at_rest().values()) == 12 * trained
    program = small.program_of("zero0", {"dp_replicate": 2}, **given)
    assert sum(size for *_, size in small.calls(program, "all_reduce")) == 2 * trained


def test_flat_gradients_in_fp32_are_twice_there_for_a_moment() -> None:
    own, torchs = (balance(small.program_of("zero0", model=LLAMA, options={"torch_adam": own})).peak_bytes
                   for own in (False, True))
    count = small.plan_of("zero0", model=LLAMA).graph.count()
    assert own - torchs == 4 * count


def test_all_ranks_are_alike() -> None:
    report = simulate(small.scenario("zero0", {"dp_replicate": 6}, model=LLAMA))
    assert [rank.num_ranks for rank in report.ranks] == [6]
    assert [(one.axis, one.size) for one in report.communicators] == [("dp_replicate", 6)]


@pytest.mark.parametrize(("mesh", "given", "kind", "told"), [
    ({"dp_shard": 2}, {}, IllegalLayout, "dp_replicate (write mesh.dp_replicate, or framework: zero1"),
    ({"ep": 2}, {}, InputError, "ep: expected 1 in a model without experts"),
    ({}, {"offload": {"optimizer": "host"}}, NotYet, "optimizer"),
    ({}, {"options": {"reduce_bucket_size": 5}}, InputError, "unknown option 'reduce_bucket_size'"),
    ({}, {"options": {"torch_adam": False}, "optimizer": {"name": "sgd"}}, IllegalLayout, "false with sgd"),
    ({}, {"options": {"torch_adam": False}, "optimizer": {"implementation": "foreach"}}, IllegalLayout, "one fused"),
    ({}, {"precision": {"compute": "bf16", "params": "fp32"}}, NotYet, "fp32 under zero0"),
    ({}, {"optimizer": {"moments": "bf16"}}, NotYet, "bf16 under zero0"),
])
def test_what_is_refused(mesh: dict[str, int], given: dict[str, Any], kind: type[RankscopeError], told: str) -> None:
    with pytest.raises(kind, match=re.escape(told)):
        small.prepared("zero0", mesh, model=LLAMA, **given)
