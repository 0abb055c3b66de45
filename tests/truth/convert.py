"""Turns the raw output of the first oracle runs into the row files of this directory.

    python tests/truth/convert.py RAW_DIR

``RAW_DIR`` holds ``fsdp2/results.json`` and ``megatron_automodel/{automodel,megatron}*_results*.json`` as those runs
left them.  The rows are the same ones that ``regenerate.py`` measures again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from oracle.rows import Row, automodel_pp_row, automodel_row, fsdp2_row, megatron_row, write_rows  # noqa: E402

FILES: list[tuple[str, str, Callable[[Row], Row]]] = [
    ("fsdp2/results.json", "fsdp2/torch-2.13.0.json", fsdp2_row),
    ("megatron_automodel/automodel_results.json", "placement/automodel-0.7.0.json", automodel_row),
    ("megatron_automodel/automodel_pp_results.json", "placement/automodel-pp-0.7.0.json", automodel_pp_row),
    ("megatron_automodel/megatron_results.json", "placement/megatron-core-0.16.1_bridge-0.3.1.json", megatron_row),
    ("megatron_automodel/megatron_results_rl.json", "placement/megatron-core-0.16.1_bridge-0.3.1.json", megatron_row),
    ("megatron_automodel/megatron_results_head.json", "placement/megatron-main-2026-08-22.json", megatron_row),
]


def main(raw: Path) -> None:
    done: dict[str, list[Row]] = {}
    for source, target, convert in FILES:
        rows = done.setdefault(target, [])
        known = {(r["name"], r.get("rank", 0)): r for r in rows}
        for item in json.loads((raw / source).read_text()):
            row = convert(item)
            old = known.get((row["name"], row.get("rank", 0)))
            if old is None:
                rows.append(row)
            elif old != row:
                raise SystemExit(f"{target}: two different results for {row['name']}")
    for target, rows in done.items():
        write_rows(HERE / target, rows)
        print(f"{target}: {len(rows)} rows, {(HERE / target).stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
