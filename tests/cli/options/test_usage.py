"""Wrong use of the command line: one line that says what was expected and what came, exit code 2."""

from __future__ import annotations

import pytest

from command import Run


@pytest.mark.parametrize(("arguments", "told"), [
    ("search a --objective speed", "--objective: expected tokens, step, cost, peak, gpus, got 'speed'"),
    ("search a --top 0", "--top: expected at least 1, got '0'"),
    ("search a --top 1001", "--top: expected at most 1,000, got '1001'"),
    ("search a -j x", "--jobs: expected a whole number, got 'x'"),
    ("search a --unsure maybe", "--unsure: expected fits, oom, got 'maybe'"),
    ("solve a --for ranks", "--for: expected gpus, micro_batch, global_batch, sequence, got 'ranks'"),
    ("run a --unsure maybe", "--unsure: expected fits, oom, got 'maybe'"),
    ("run a --format xml", "--format: expected github, junit, got 'xml'"),
    ("run a --rank -1", "--rank: expected at least 0, got '-1'"),
    ("place a --rank x", "--rank: expected a whole number, got 'x'"),
    ("validate -j 0", "--jobs: expected at least 1, got '0'"),
    ("explain a steps", "what: expected peak, trainable, step, got 'steps'"),
    ("run a --qqq", "--qqq: unknown option of rankscope run"),
    ("run a --jsn", "--jsn: unknown option of rankscope run, did you mean --jobs or --json or --on"),
    ("run a --set", "option --set requires an argument"),
    ("explain", "explain: missing argument scenario"),
    ("explain a peak more", "explain: got unexpected extra argument (more)"),
    ("--nope", "--nope: unknown option"),
    ("fly", "no such command fly")])
def test_wrong_use_is_one_line(ran: Run, arguments: str, told: str) -> None:
    result = ran(*arguments.split())
    assert (result.code, result.out, result.err) == (2, "", f"rankscope: {told}\n")


def test_no_command_is_help(ran: Run) -> None:
    result = ran()
    assert result.code == 2
    assert result.err.startswith("Usage: ")
