"""Measures what eager layers allocate, event by event: the cases of `tape/families-*.json`.

    python tests/truth/probe_tape.py CASE... > tests/truth/tape/families-torch-2.13.0-transformers-5.23.0.json

`hybrids-*.json` holds the cases of `cases-hybrids.json`, `liger-*.json` those of `cases-liger.json`, given one by one;
`minimax-*.json` those of `cases-minimax.json`, `neox-*.json` those of `cases-neox.json`.

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those of `tape/cases.json`. A step
of `probe_fsdp2.py` is logged and cut at FSDP2's hooks; buffers that FSDP2 owns are left out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from oracle import logs
from oracle.steps import run as fsdp2_run
from oracle.steps.log import Replay

HERE = Path(__file__).resolve().parent
FSDP2_OWNS = {
    "sharded_param", "unsharded_param", "all_gather_output", "all_gather_cast_input", "reduce_scatter_input",
    "reduce_scatter_output", "sharded_grad", "opt_state", "input", "ignored_param", "post_forward_shard",
}  # fmt: skip


def spec_of(case: dict[str, Any]) -> dict[str, Any]:
    """The case in the words of `probe_fsdp2.py`."""
    spec = {"name": "tape", "model": {"preset": case["preset"], "overrides": case["overrides"]}, "seq": case["seq"],
            "batch": case.get("batch", 1), "ac": {True: "layer", "host": "host"}.get(case.get("checkpoint"), "none"),
            "loss": "hf" if case.get("loss") == "hf_keep_logits" else "hf_drop_logits", "ep": case.get("ep", 1)}
    if "experts" in case:
        spec["ep_mode"] = {"unit": "dtensor", "ignored": "ignored"}[case["experts"]]
    if "experts_implementation" in case:
        spec["experts_implementation"] = case["experts_implementation"]
    if "attn_implementation" in case:
        spec["attention"] = case["attn_implementation"]
    if "lora" in case:
        spec["lora"] = case["lora"]
    if case.get("liger"):
        spec["liger"] = True
    if case.get("compute") == "fp32":
        spec["mp_param"] = None
    return spec


def logged(case: dict[str, Any]) -> Any:
    """The tracker of a run of the case."""
    kept: list[Any] = []

    class Keeping(Replay):
        def __init__(self, tracker: Any) -> None:
            kept.append(tracker)
            super().__init__(tracker)

    fsdp2_run.Replay = Keeping  # type: ignore[misc]
    fsdp2_run.measure(spec_of(case))
    return kept[0]


def hooks_of_experts(label: str) -> list[str]:
    """`hook N` where a hook of an experts' unit begins."""
    hook, _, where = label.partition(":")[2].partition(":")
    numbers = {"pre_forward_begin": 2, "post_forward_begin": 3, "pre_backward_begin": 4, "post_backward_begin": 5}
    return [f"hook {numbers[hook]}"] if hook in numbers and ".experts" in where else []


def section_at(label: str, now: str) -> str:
    """The section that a marker opens."""
    hook, _, where = label.partition(":")[2].partition(":")
    layer = where.split(":")[0]
    for prefix in ("model.layers.", "backbone.layers.", "gpt_neox.layers."):
        layer = layer.removeprefix(prefix)
    if label == "fwd:begin":
        return "stem"
    if label == "bwd:begin":
        return "loss"
    if not layer.isdigit():
        return now
    opened = {"pre_forward_begin": f"forward {layer}", "post_forward_begin": f"after {layer}",
              "pre_backward_begin": f"backward {layer}"}
    return opened.get(hook, now)


def sections(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Signed bytes of every section, and bytes born by category."""
    tracker = logged(case)
    starts = [place for place, label in tracker.markers if label == "fwd:begin"]
    ends = [place for place, label in tracker.markers if label == "bwd:end"]
    marks = [(place, label) for place, label in tracker.markers if starts[-1] <= place]
    found: dict[str, tuple[list[int | str], Counter[str]]] = {}
    now = "stem"
    sent = [(comm["at"], f"all_to_all {comm['bytes']}") for comm in tracker.comms if comm["kind"] == "all_to_all"]
    for number in range(starts[-1], ends[-1]):
        while marks and marks[0][0] <= number:
            label = marks.pop(0)[1]
            now = section_at(label, now)
            found.setdefault(now, ([], Counter()))[0].extend(hooks_of_experts(label))
        found[now][0].extend(text for place, text in sent if place == number)
        storage, change = tracker.events[number]
        category = tracker.info[storage]["cat"]
        if category in FSDP2_OWNS or (category == "unsharded_grad" and change < 0):
            continue
        events, born = found[now]
        events.append(change)
        born[category] += max(change, 0)
    return [{"at": at, "events": events, "born": {k: v for k, v in born.items() if v}}
            for at, (events, born) in found.items()]


if __name__ == "__main__":
    logs.main(__file__, lambda case: {"sections": sections(case)}, HERE / "tape" / "cases.json")
