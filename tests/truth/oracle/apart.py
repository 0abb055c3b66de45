"""Cases in processes of their own: what a framework keeps of one is not there for the next."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any

Case = dict[str, Any]


def run_apart(cases: Mapping[str, Case], run: Callable[[Case], Any]) -> dict[str, Case]:
    """Each case with what `run` found of it, as `found`."""
    rows, fork = {}, multiprocessing.get_context("fork")
    for name, case in cases.items():
        answers = fork.SimpleQueue()
        child = fork.Process(target=lambda case=case, answers=answers: answers.put(run(case)))
        child.start()
        while answers.empty() and child.is_alive():
            child.join(0.05)
        if answers.empty():
            raise RuntimeError(f"the process of {name} ended with exit code {child.exitcode} and no answer")
        rows[name] = case | {"found": answers.get()}
        child.join()
    return rows
