"""Runs `rankscope verify` as on a clean machine: the layouts of `verified/`, and two that are made wrong on purpose.

    python tests/truth/verify_clean.py FOLDER    # a new folder: takes 2 GiB, and a quarter of an hour on two cores

The wheel is built and installed, beside uv, in a fresh virtual environment; home and cache are new folders, the working
folder holds nothing but the scenarios, and of the variables only those by which packages are found are handed on.
Writes `verified/clean.json`, from which `tests/verify/test_clean.py --write` makes the table of docs/verify.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ROOT / "tests/truth/verified"
ASKED = ("fsdp2-llama.yaml", "hsdp-llama.yaml", "automodel-nano-ep.yaml", "megatron-qwen3-tp-ep.yaml",
         "zero3-llama.yaml", "qlora-llama.yaml", "fsdp2-llama.yaml --real-set mesh.dp_shard=8",
         "megatron-qwen3-tp-ep.yaml --real-set mesh.etp=2")
HANDED_ON = ("PIP_", "UV_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def installed(folder: Path) -> dict[str, str]:
    """Makes the machine in `folder`; the variables of its processes."""
    for name in ("home", "work"):
        (folder / name).mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"], cwd=ROOT,
                   check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([folder / "venv/bin/python", "-m", "pip", "install", "-q", wheel, "uv"], check=True)
    for file in LAYOUTS.glob("*.yaml"):
        shutil.copy(file, folder / "work")
    return {name: value for name, value in os.environ.items() if name.startswith(HANDED_ON)} | {
        "HOME": str(folder / "home"), "PATH": f"{folder / 'venv/bin'}:/usr/bin:/bin", "LANG": "C.UTF-8"}


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    variables, rows = installed(folder), []
    for asked in ASKED:
        command, started = f"rankscope verify {asked}", monotonic()
        done = subprocess.run([folder / "venv/bin" / "rankscope", "verify", *asked.split(), "--json"], check=False,
                              cwd=folder / "work", env=variables, capture_output=True, text=True)
        seconds = round(monotonic() - started)
        print(f"{command}: exit code {done.returncode}, {seconds} s\n{done.stderr}{done.stdout}", flush=True)
        (outcome,) = json.loads(done.stdout) or [{"problem": done.stderr.strip()}]
        rows.append({"command": command, "exit_code": done.returncode, "whole_seconds": seconds, **outcome})
    (LAYOUTS / "clean.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int([row["exit_code"] for row in rows] != [0] * 6 + [1] * 2)


if __name__ == "__main__":
    sys.exit(main())
