"""Measures the truth files again, or checks that they can be measured again.

    python tests/truth/regenerate.py                      # the fresh-*.json files, out of the two cases.json
    python tests/truth/regenerate.py --all                # the other files too (not the main snapshot)
    python tests/truth/regenerate.py --only REGEX         # cases whose name matches; other rows are kept
    python tests/truth/regenerate.py --check [--every N]  # measure every N-th case of all files, compare, write nothing

Needs the environment of requirements.txt; see README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from oracle.rows import Row, read_rows, write_rows

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Target:
    """A row file, the probe that measures it and the list its cases come from (default: its own rows)."""

    path: str
    probe: str
    cases: str = ""
    keys: tuple[str, ...] = ()
    main_snapshot: bool = False


TARGETS = (
    Target("placement/fresh-automodel-0.7.0.json", "automodel", "placement/cases.json", ("automodel", "automodel_pp")),
    Target("placement/fresh-megatron-core-0.16.1.json", "megatron", "placement/cases.json", ("megatron",)),
    Target("fsdp2/fresh-torch-2.13.0.json", "fsdp2", "fsdp2/cases.json"),
    Target("fsdp2/drawn-torch-2.13.0.json", "drawn_fsdp2", "fsdp2/drawn-cases.json"),
    Target("fsdp2/drawn-embedding-torch-2.13.0.json", "drawn_fsdp2"),
    Target("fsdp2/families-torch-2.13.0.json", "fsdp2"),
    Target("fsdp2/gemma4-experts-torch-2.13.0.json", "drawn_fsdp2"),
    Target("fsdp2/minimax-torch-2.13.0.json", "drawn_fsdp2"),
    Target("fsdp2/neox-torch-2.13.0.json", "drawn_fsdp2"),
    Target("fsdp2/gemma4-experts-fresh-torch-2.13.0.json", "drawn_fsdp2"),
    Target("placement/automodel-0.7.0.json", "automodel"),
    Target("placement/automodel-pp-0.7.0.json", "automodel"),
    Target("placement/megatron-core-0.16.1_bridge-0.3.1.json", "megatron"),
    Target("placement/drawn-automodel-0.7.0.json", "automodel"),
    Target("placement/drawn-automodel-hf-0.7.0.json", "automodel"),
    Target("placement/drawn-automodel-hf-cut-0.7.0.json", "automodel"),
    Target("placement/drawn-automodel-mimo-0.7.0.json", "automodel"),
    Target("placement/drawn-automodel-oss-0.7.0.json", "automodel"),
    Target("placement/drawn-automodel-stages-0.7.0.json", "automodel"),
    Target("placement/drawn-automodel-tp-0.7.0.json", "automodel"),
    Target("placement/drawn-megatron-core-0.16.1.json", "megatron"),
    Target("placement/drawn-megatron-delta-core-0.16.1.json", "megatron"),
    Target("placement/drawn-megatron-mtp-core-0.16.1.json", "megatron"),
    Target("placement/glm-megatron-core-0.16.1.json", "megatron"),
    Target("placement/predicting-megatron-core-0.16.1.json", "megatron"),
    Target("fsdp2/torch-2.13.0.json", "fsdp2"),
    Target("fsdp1/torch-2.13.0.json", "fsdp1"),
    Target("fsdp1/lora-torch-2.13.0.json", "fsdp1"),
    Target("fsdp1/drawn-peft-units-torch-2.13.0.json", "fsdp1"),
    Target("deepspeed/estimates-0.19.6.json", "zero_estimates"),
    Target("placement/megatron-main-2026-08-22.json", "megatron", main_snapshot=True),
)


def key(item: Row) -> tuple[str, int]:
    """Placement cases are measured on several ranks; FSDP cases have one rank and a name of their own."""
    return item["name"], 0 if "spec" in item or "model" in item.get("case", item) else item.get("rank", 0)


def case_of(row: Row) -> Row:
    """The case a stored row was measured from."""
    if "spec" not in row:
        return {"name": row["name"], "rank": row["rank"], **row["case"]}
    detail = {"saved_layer": list(row["saved_detail"])} if "saved_detail" in row else {}
    return {"name": row["name"], **row["spec"], **detail}


def cases_of(target: Target) -> list[Row]:
    if not target.cases:
        return [case_of(r) for r in read_rows(HERE / target.path)]
    loaded: Any = json.loads((HERE / target.cases).read_text())
    return [c for k in target.keys for c in loaded[k]] if target.keys else loaded


def measure(probe: str, cases: list[Row], on_row: Callable[[Row], None]) -> None:
    """One probe process for all ``cases``; ``on_row`` sees each row as soon as it is there."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / f"probe_{probe}.py")]
    log = subprocess.DEVNULL if not os.environ.get("TRUTH_VERBOSE") else None
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=env) as p:
        assert p.stdin is not None
        assert p.stdout is not None
        p.stdin.write("".join(json.dumps(c) + "\n" for c in cases))
        p.stdin.close()
        left = len(cases)
        for line in p.stdout:
            if line.startswith("ROW "):
                on_row(json.loads(line[4:]))
                left -= 1
            elif line.startswith("FAILED "):
                print(line, end="", flush=True)
    if p.returncode or left:
        raise SystemExit(f"probe_{probe}.py: status {p.returncode}, {left} cases not measured (try TRUTH_VERBOSE=1)")


def differences(new: Any, old: Any, path: str = "") -> list[str]:
    if isinstance(new, dict) and isinstance(old, dict):
        out = []
        for k in sorted({*new, *old}):
            out += differences(new.get(k), old.get(k), f"{path}.{k}")
        return out
    return [] if new == old else [f"{path[1:]}: measured {json.dumps(new)[:160]}, stored {json.dumps(old)[:160]}"]


def run_target(target: Target, todo: list[Row], jobs: int, check: bool) -> int:
    """Measures ``todo``; returns how many rows differ from the stored ones."""
    path = HERE / target.path
    rows = {key(r): r for r in read_rows(path)}
    order = [key(c) for c in cases_of(target)]
    lock, differing = Lock(), 0

    def on_row(row: Row) -> None:
        nonlocal differing
        with lock:
            diff = differences(row, rows.get(key(row)))
            label = f"{target.path}: {row['name']} rank {row.get('rank', row.get('spec', {}).get('rank', 0))}"
            print(label, "same" if not diff else "DIFFERENT" if check else "measured", row.get("error", ""), flush=True)
            differing += bool(diff)
            if check:
                print("".join(f"    {d}\n" for d in diff[:12]), end="", flush=True)
            else:
                rows[key(row)] = row
                write_rows(path, [rows[k] for k in order if k in rows])

    parts = [todo[i::jobs] for i in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda part: measure(target.probe, part, on_row), [p for p in parts if p]))
    return differing


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--only", metavar="REGEX", help="only cases whose name matches")
    ap.add_argument("--file", metavar="REGEX", default="", help="only row files whose path matches")
    ap.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th of the selected cases")
    ap.add_argument("--check", action="store_true", help="compare with the stored rows, write nothing")
    ap.add_argument("--all", action="store_true", help="measure the first files again too, not only the fresh ones")
    ap.add_argument("--main-snapshot", action="store_true", help="the file that needs the main branches on PYTHONPATH")
    ap.add_argument("--missing", action="store_true", help="only cases that have no stored row")
    ap.add_argument("--jobs", type=int, default=2)
    a = ap.parse_args()
    differing = selected = 0
    for target in TARGETS:
        wanted = target.main_snapshot if a.main_snapshot else not target.main_snapshot
        chosen = target.cases or a.all or a.check or a.main_snapshot
        if not (wanted and chosen and re.search(a.file, target.path)):
            continue
        cases = [c for c in cases_of(target) if not a.only or re.search(a.only, c["name"])]
        if a.missing:
            known = {key(r) for r in read_rows(HERE / target.path)}
            cases = [c for c in cases if key(c) not in known]
        cases = cases[:: a.every]
        selected += len(cases)
        if cases:
            differing += run_target(target, cases, a.jobs, a.check)
    print(f"{selected} cases measured" + (f", {differing} differ from the stored rows" if a.check else ""))
    return 1 if a.check and (differing or not selected) else 0


if __name__ == "__main__":
    sys.exit(main())
