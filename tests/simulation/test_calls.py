"""Work of an answer that the process has given before, counted: no other program of the machine changes it."""

from __future__ import annotations

import cProfile

import small
from simcore.simulate import simulate

MOST = 6400
"""Function calls of an answer about memory: a tenth more than were counted in November 2026."""


def test_an_answer_given_again_makes_few_calls() -> None:
    made = {}
    for framework in ("fsdp2", "automodel", "megatron"):
        asked = small.scenario(framework, {"dp_shard": 8, "ep": 8}, seq_len=4096, model="nemotron-3-nano-30b-a3b")
        for _ in range(3):
            assert simulate(asked, timed=False).status == "ok"
        profile = cProfile.Profile()
        profile.runcall(simulate, asked, timed=False)
        made[framework] = sum(one.callcount for one in profile.getstats())
    assert {name: calls for name, calls in made.items() if calls > MOST} == {}, made
