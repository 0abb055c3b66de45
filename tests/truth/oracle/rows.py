"""Compact rows: what is kept of one measured case, and how row files are read and written.

A row file is a JSON list with one row per line.  The field meanings are in ``tests/truth/README.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .steps.defaults import FSDP2_DEFAULTS

Row = dict[str, Any]

PHASES = ("fwd", "bwd", "fwd_bwd", "opt", "step")
LAYER = re.compile(r"^(?:model|gpt_neox)\.layers\.(\d+)$")


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
    path.write_text("[\n" + body + "\n]\n")


def read_rows(path: Path) -> list[Row]:
    return json.loads(path.read_text()) if path.exists() else []


def error_text(message: str) -> str:
    """The message without the rank prefix that torch puts in front of it."""
    return re.sub(r"^\[rank\d+\]: ", "", message.strip())


# ---- FSDP2 -----------------------------------------------------------------------------


def fsdp2_spec(spec: Row) -> Row:
    """Only what differs from the defaults; ``name`` and ``saved_layer`` (an output option) are left out."""
    kept = {k: v for k, v in spec.items() if k not in ("name", "saved_layer")}
    return {k: v for k, v in kept.items() if k not in FSDP2_DEFAULTS or v != FSDP2_DEFAULTS[k]}


def saved_runs(saved: dict[str, int]) -> Row:
    """Saved activation bytes: ``layers`` as [count, bytes] runs in layer order, other owners by name."""
    runs: list[list[int]] = []
    layers = sorted((int(m.group(1)), b) for k, b in saved.items() if (m := LAYER.match(k)))
    last = layers[-1][0] if layers else -1
    table = dict(layers)
    for i in range(last + 1):
        b = table.get(i, 0)
        if runs and runs[-1][1] == b:
            runs[-1][0] += 1
        else:
            runs.append([1, b])
    return {"layers": runs, **{k: b for k, b in saved.items() if not LAYER.match(k)}}


def traffic_rows(by_phase: dict[str, Row]) -> list[Row]:
    out = []
    for key, v in by_phase.items():
        kind, phase, group, dtype = key.split("|")
        out.append(dict(
            collective=kind, phase=phase, group_size=int(group[1:]), dtype=dtype, calls=v["count"],
            payload_bytes=v["payload_bytes"], wire_bytes=v["wire_bytes"],
        ))  # fmt: skip
    return out


def fsdp2_row(raw: Row) -> Row:
    spec = raw.get("spec") or raw["case"]
    row: Row = dict(name=spec["name"], spec=fsdp2_spec(spec))
    if "error" in raw:
        return {**row, "error": error_text(raw["error"])}
    last = raw["steps"][-1]
    row["placement"] = {k: raw["placement"][k] for k in ("params", "numel", "local_bytes", "padded_bytes")}
    row["phases"] = {p: {k: last[p][k] for k in ("peak", "where", "breakdown", "end")} for p in PHASES if p in last}
    row["first_step_peak"] = {p: raw["steps"][0][p]["peak"] for p in PHASES if p in raw["steps"][0]}
    row["traffic"] = traffic_rows(last["traffic"]["by_phase"])
    saved = raw.get("saved_by_layer") or last.get("saved_by_layer")
    if saved:
        row["saved_by_layer"] = saved_runs(saved)
    if raw.get("saved_detail"):
        row["saved_detail"] = raw["saved_detail"]
    return row


def of_functional(calls: Iterable[list[Any]]) -> list[list[Any]]:
    """Calls [kind, phase, ranks, dtype, size] with functional collectives in the words of `drawn_step_row`.

    A functional all-gather tells of its input; what wraps a tensor for autograd sends nothing.
    """
    return [["all_gather", phase, ranks, dtype, size * ranks] if kind == "all_gather_into_tensor"
            else [kind, phase, ranks, dtype, size]
            for kind, phase, ranks, dtype, size in calls if kind != "_wrap_tensor_autograd"]


def drawn_step_row(raw: Row) -> Row:
    """A whole step, short: placement, highest bytes of phases, and every collective in the order it was called."""
    spec = raw.get("spec") or raw["case"]
    row: Row = dict(name=spec["name"], spec=fsdp2_spec(spec))
    if "error" in raw:
        return {**row, "error": error_text(raw["error"])}
    last = raw["steps"][-1]
    kinds = list(dict.fromkeys(tuple(call) for call in raw["calls"]))
    row["placement"] = {**raw["placement"], **{k: raw[k] for k in ("trained", "states_bytes", "grads_bytes")}}
    row["peaks"] = {p: last[p]["peak"] for p in PHASES if p in last}
    row["first_step_peak"] = raw["steps"][0]["step"]["peak"]
    row.update(where=last["step"]["where"], breakdown=last["step"]["breakdown"], end=last["step"]["end"])
    row.update(calls=kinds, order=folded([kinds.index(tuple(call)) for call in raw["calls"]]))
    return row


def folded(numbers: list[int]) -> list[list[int]]:
    """A sequence as runs of a block: ``[times, *block]``; of all blocks up to eight long, that which covers most."""
    runs: list[list[int]] = []
    at = 0
    while at < len(numbers):
        best = (1, 1)
        for size in range(1, 9):
            block, times = numbers[at : at + size], 1
            while numbers[at + times * size : at + (times + 1) * size] == block:
                times += 1
            if times > 1 and times * size > best[0] * best[1]:
                best = (times, size)
        times, size = best
        block = numbers[at : at + size]
        if times == 1 and runs and runs[-1][0] == 1:
            runs[-1] += block
        else:
            runs.append([times, *block])
        at += times * size
    return runs


def unfolded(runs: list[list[int]]) -> list[int]:
    """The sequence that was folded."""
    return [n for times, *block in runs for n in block * times]


# ---- placement -------------------------------------------------------------------------


def placement_head(case: Row) -> Row:
    rest = {k: v for k, v in case.items() if k not in ("name", "rank")}
    return dict(name=case["name"], rank=case.get("rank", 0), case=rest)


def automodel_row(raw: Row) -> Row:
    """At rest: gradients and both Adam moments have the dtype of their parameter, so they follow its local bytes."""
    case = raw["case"]
    row = placement_head(case)
    if "error" in raw:
        return {**row, "error": error_text(raw["error"])}
    if "local_trainable_bytes" in raw:
        grad = sum(raw["local_trainable_bytes"].values())
    else:  # older raw results: the fp32 Mamba scalars of a bf16 model are the only mixed case
        size = 4 if case.get("dtype") == "float32" else 2
        wide = sum(n for d, n in raw["local_dtypes_numel"].items() if d == "float32")
        grad = sum(raw["local_trainable_numel"].values()) * size
        grad += 2 * wide if size == 2 and not raw["lora_modules"] else 0
    row.update(
        mesh={k: v for k, v in raw["mesh"].items() if v is not None}, bytes=raw["local_bytes"],
        params_bytes=raw["local_bytes_total"], storage_bytes=raw["local_storage_bytes_total"],
        trainable_local=sum(raw["local_trainable_numel"].values()), trainable_global=raw["trainable_global_total"],
        grad_bytes=grad, adam_bytes=2 * grad, dtypes_numel=raw["local_dtypes_numel"],
    )  # fmt: skip
    if raw["lora_modules"]:
        row["lora_modules"] = raw["lora_modules"]
    if raw.get("loader_error"):
        row["loader_error"] = raw["loader_error"]
    return row


def automodel_pp_row(raw: Row) -> Row:
    case = raw["case"]
    row = placement_head({"name": "{world}gpu-pp{pp}-ep{ep}".format(**case), **case})
    if "error" in raw:
        return {**row, "error": error_text(raw["error"])}
    row.update(
        mesh={"moe_mesh": raw["moe_mesh"]}, layers=raw["layers"], pattern=raw["pattern"], bytes=raw["local_bytes"],
        params_bytes=raw["local_bytes_total"],
    )  # fmt: skip
    if "local_storage_bytes_total" in raw:
        row["storage_bytes"] = raw["local_storage_bytes_total"]
    return row


def automodel_any_row(raw: Row) -> Row:
    return (automodel_pp_row if raw["case"].get("pp", 1) > 1 else automodel_row)(raw)


def megatron_row(raw: Row) -> Row:
    """The distributed optimizer keeps 12 bytes (fp32 master and two moments) for every element of the local range."""
    case = raw["case"]
    row = placement_head(case)
    if "error" in raw:
        return {**row, "error": error_text(raw["error"])}
    row.update(
        groups=raw["groups"], layers=raw["layer_counts"], layer_types=raw["layer_types"], bytes=raw["local_bytes_bf16"],
        params_bytes=raw["local_bytes_bf16_total"], trainable_local=raw["local_trainable_total"],
        trainable_dense=raw["trainable_dense"], trainable_expert=raw["trainable_expert_parallel"],
    )  # fmt: skip
    if raw["lora_modules"]:
        row["lora_modules"] = raw["lora_modules"]
        row["lora_shapes"] = {k: v["local"] for k, v in raw["lora_shapes"].items()}
    ddp = raw["ddp"]
    if "error" in ddp:
        return {**row, "error": "ddp: " + ddp["error"]}
    keep = ("numel_padded", "numel_unpadded", "n_buckets", "dp_size", "opt_shard_elems", "grad_bytes")
    row.update(
        main_grad_bytes=sum(b["grad_bytes"] for b in ddp.values()),
        optimizer_bytes=12 * sum(b["opt_shard_elems"] for b in ddp.values()),
        buffer_padding_elems=sum(b["numel_padded"] - b["numel_unpadded"] for b in ddp.values()),
        ddp={name: {k: b[k] for k in keep} for name, b in ddp.items()},
    )
    return row


def drawn_placement_row(raw: Row) -> Row:
    """All that was measured."""
    case = raw["case"]
    found = {k: v for k, v in raw.items() if k not in ("case", "error")}
    return {**placement_head(case), **found, **({"error": error_text(raw["error"])} if "error" in raw else {})}
