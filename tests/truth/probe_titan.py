"""Measures what torchtitan's own layers allocate, event by event: the cases of `tape/torchtitan-*.json`.

    python tests/truth/probe_titan.py CASE... > tests/truth/tape/torchtitan-0.2.2-torch-2.13.0.json

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those of `tape/cases-titan.json`.
A step is logged and cut at FSDP2's hooks; buffers that FSDP2 owns are left out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from oracle import logs
from probe_tape import FSDP2_OWNS, hooks_of_experts, section_at

HERE = Path(__file__).resolve().parent
ON_HOST = "aten.lift_fresh.default"
"""Numbers that DTensor writes into masks: a real run makes them on the host."""
PHASE_CATEGORY = {"fwd": "activation", "recompute": "recompute", "bwd": "backward_temp"}
COLLECTIVES = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
               "all_reduce": "all_reduce", "all_to_all": "all_to_all"}  # fmt: skip


def sent(comm: dict[str, Any]) -> str:
    """A collective of tensor parallelism; of an all-gather the whole output counts."""
    kind = COLLECTIVES.get(comm["kind"])
    size = comm["bytes"] * (comm["group"] if kind == "all_gather" else 1)
    return f"{kind} {size}" if kind else ""


def fsdp_works_on_experts(label: str, before: str) -> str:
    """The hook of the experts' unit that runs: what is born in it is FSDP2's, whatever it is called; "" in none."""
    if ".experts" not in label:
        return before
    hook = label.split(":")[1]
    return hook if hook in ("pre_forward_begin", "pre_backward_begin", "post_backward_begin") else ""


def as_fsdp_s(info: dict[str, Any], hook: str) -> None:
    """Names what FSDP2 makes in a hook and does not tag: casts, and copies of what is cut on dimension 1."""
    if info["cat"] in PHASE_CATEGORY.values():
        cast = "_to_copy" in info["op"]
        info["cat"] = ("unsharded_grad" if hook.startswith("post") else "all_gather_cast_input" if cast else
                       "unsharded_param")


def sections(case: dict[str, Any]) -> dict[str, Any]:
    """Signed bytes of every section, bytes born by category, and the shapes at rest."""
    from oracle import titan, titan_oss
    from oracle.steps.log import Replay

    tracker, shapes = (titan_oss if titan_oss.is_oss(case) else titan).logged(case)
    starts = [place for place, label in tracker.markers if label == "fwd:begin"]
    ends = [place for place, label in tracker.markers if label == "bwd:end"]
    marks = [(place, label) for place, label in tracker.markers if starts[-1] <= place]
    comms = [(comm["at"], sent(comm)) for comm in tracker.comms]
    found: dict[str, tuple[list[int | str], Counter[str]]] = {}
    made_by_fsdp, apart = set[int](), set[int]()
    now, reducing, gathering = "stem", False, ""
    for number in range(starts[-1], ends[-1]):
        while marks and marks[0][0] <= number:
            label = marks.pop(0)[1]
            now = section_at(label.replace(":layers.", ":model.layers."), now)
            reducing = "post_backward_begin" in label or (reducing and "post_backward_end" not in label)
            found.setdefault(now, ([], Counter()))[0].extend(hooks_of_experts(label))
            gathering = fsdp_works_on_experts(label, gathering)
        events, born = found.setdefault(now, ([], Counter()))
        events.extend(text for place, text in comms if place == number and text)
        storage, change = tracker.events[number]
        category = tracker.info[storage]["cat"]
        if reducing and category == "backward_temp" and change > 0:
            made_by_fsdp.add(storage)
        if gathering and change > 0:
            apart.add(storage)
            as_fsdp_s(tracker.info[storage], gathering)
        if storage in apart:
            continue
        if storage in made_by_fsdp:  # gradients that DTensor redistributes before they are reduced
            category = "unsharded_grad"
        if (category in FSDP2_OWNS or (category == "unsharded_grad" and change < 0)
                or tracker.info[storage]["op"] == ON_HOST):
            continue
        events.append(change)
        born[category] += max(change, 0)
    peak = Replay(tracker).segment(starts[-1], ends[-1])
    step = [comm for comm in tracker.comms if starts[-1] <= comm["at"] <= ends[-1]]
    traffic = Counter(f"{sent(comm) or comm['kind'] + ' ' + str(comm['bytes'])} {comm['group']}" for comm in step)
    after = [place for place, label in tracker.markers if label == "balance:begin"]
    balance = [f"{sent(comm)} {comm['group']}" for comm in tracker.comms if after and comm["at"] >= after[0]]
    return {"shapes": shapes, **({"balance": balance} if balance else {}), "peak": peak["peak"],
            "breakdown": peak["breakdown"], "traffic": traffic, "sections": [
        {"at": at, "events": events, "born": {k: v for k, v in born.items() if v}}
        for at, (events, born) in found.items()]}


if __name__ == "__main__":
    logs.main(__file__, sections, HERE / "tape" / "cases-titan.json")
