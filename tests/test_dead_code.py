"""Code that nothing uses, as vulture finds it by names; what it cannot see in use is listed with the reason."""

from __future__ import annotations

from typing import Final

from vulture import Vulture

from checkout import ROOT

# Reasons, each with the names that it covers. A name that vulture no longer reports must leave the list.
USED_FROM_OUTSIDE: Final[dict[str, frozenset[str]]] = {
    "called by Python, simpy, pickle, pydantic or IPython": frozenset({
        "__class__", "__getattr__", "_accept_plain", "_are_tables", "_countable", "_day_or_month", "_in_range", "_ok",
        "_one_length_of_the_run", "_ordered", "_projects", "_render_traceback_", "_repr_html_", "callbacks",
        "find_class", "persistent_load", "pid"}),
    "called by ruamel.yaml's parser, or read by its scanner": frozenset({"check_token", "get_token", "tokens_taken"}),
    "commands and values of the command line": frozenset({
        "CPU", "JUNIT", "rankscope"}),
    "fields of results, published": frozenset({
        "balanced_rows", "cache_budget_bytes", "executed_tflops_per_gpu", "in_fit", "num_equal", "num_repeated",
        "num_simulated", "price_source", "records", "schema_version"}),
    "keys of input files, read by computed names": frozenset({
        "reduce_scatter", "send_recv", "tf32"}),
    "read by the scripts that fit constants": frozenset({"kept_out"}),
    "fields read as a whole or by computed names": frozenset({
        "BACKWARD_END", "Weights", "inode", "written_ns"}),
}


def unused() -> dict[str, str]:
    """Names of the engine and of `viz` that nothing in them uses, each with its place."""
    finder = Vulture()
    finder.scavenge([str(ROOT / "simcore"), str(ROOT / "viz")], exclude=[str(ROOT / "simcore/verify/real/*")])
    return {item.name: f"{item.filename.relative_to(ROOT)}:{item.first_lineno} {item.typ}"
            for item in finder.get_unused_code(min_confidence=60)}


def test_no_dead_code() -> None:
    allowed = frozenset().union(*USED_FROM_OUTSIDE.values())
    found = unused()
    assert {name: place for name, place in found.items() if name not in allowed} == {}
    assert allowed <= set(found), "in use by now: no reason is needed"
