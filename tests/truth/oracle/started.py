"""Programs that a launch script starts, as stand-ins on PATH note them: nothing is trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LAUNCHERS = ("torchrun", "accelerate", "axolotl", "automodel", "deepspeed", "trl", "srun", "python", "python3")
STAND_IN = f"""#!{sys.executable} -S
import json, os, sys
with open(os.environ["STARTED"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""


def started(script: Path) -> list[list[str]]:
    """Name and arguments of every launcher that a script starts, in order."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in LAUNCHERS:
            (folder / name).write_text(STAND_IN, encoding="utf-8")
            (folder / name).chmod(0o755)
        notes = folder / "started.jsonl"
        notes.touch()
        environment = {"PATH": f"{folder}{os.pathsep}{os.defpath}", "STARTED": str(notes), "HOME": made}
        subprocess.run(["/bin/bash", "-eu", str(script)], env=environment, cwd=script.parent, check=True)
        return [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]


def one_started(script: Path, launcher: str) -> list[str]:
    """Arguments of the one launcher that a script starts; ValueError for another, or for several."""
    found = started(script)
    if len(found) != 1 or found[0][0] != launcher:
        raise ValueError(f"expected one {launcher}, got {[one[0] for one in found]}")
    return found[0][1:]


def behind_torchrun(script: Path) -> tuple[int, list[str]]:
    """(processes of all nodes, words behind the program) of a `torchrun` line, by torch's own parser."""
    from torch.distributed.run import get_args_parser  # slow, and not needed by every format

    arguments = get_args_parser().parse_args(one_started(script, "torchrun"))
    nodes = int(str(arguments.nnodes).partition(":")[0])
    return nodes * int(arguments.nproc_per_node), arguments.training_script_args
