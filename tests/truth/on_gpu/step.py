"""Runs one case and writes what was read, each file as soon as it is there.

    python -m on_gpu.step NAME --into FOLDER [--topology dgx-h200] [--device cpu] [--makers PACKAGE]

Two recorded steps (the first makes the optimizer's states), then timed ones without any recorder, then one under the
profiler. Exit code 0: written; 3: a package is missing, which is told; 1: an error, with its traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gzip
import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from on_gpu.cases import CASES, TOPOLOGIES, Case
from on_gpu.row import row_of
from on_gpu.watch import OnCpu, OnCuda

RECORDED, TIMED, WARM = 2, 6, 1
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "unsloth", "megatron-core", "transformer-engine",
            "mamba-ssm", "causal-conv1d")
MISSING = 3


def absent(modules: tuple[str, ...]) -> list[str]:
    """Modules that are not installed, found without importing them; a folder without code is none."""
    def is_there(name: str) -> bool:
        with contextlib.suppress(ModuleNotFoundError):
            spec = importlib.util.find_spec(name)
            return spec is not None and spec.origin is not None
        return False

    return [name for name in modules if not is_there(name)]


def machine_of(torch: Any, device: str) -> dict[str, str]:
    """What the source of a row says of the machine."""
    found = {name: version(name) for name in PACKAGES if not _unknown(name)}
    found.setdefault("torch", torch.__version__)
    named = ", ".join(f"{name} {number.partition('+')[0]}" for name, number in found.items())
    commit = _said(["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "--short=12", "HEAD"])
    return {"device": torch.cuda.get_device_name(0) if device == "cuda" else "CPU", "commit": commit or "unknown",
            "versions": f"{named}, CUDA {torch.version.cuda}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
            "driver": _said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]) or "unknown"}


def _unknown(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return True
    return False


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""


def one_step(made: Any, watch: Any) -> dict[str, Any]:
    """Forward, backward and the optimizer over one microbatch."""
    watch.begin()
    batch = made.batch()
    loss = made.loss(*batch)
    watch.end_phase("forward")
    loss.backward()
    del loss, batch
    watch.end_phase("backward")
    made.optimizer.step()
    made.optimizer.zero_grad(set_to_none=True)
    watch.end_phase("optimizer")
    read: dict[str, Any] = watch.end()
    return read


def run(case: Case, scenario: dict[str, Any], torch: Any, args: argparse.Namespace) -> None:
    """All steps of a case and its files."""
    machine, into = machine_of(torch, args.device), Path(args.into)
    room, _, name = case.maker.rpartition(".")
    make = getattr(importlib.import_module(f"{args.makers}.{room}"), name)
    missing = absent(case.kernels) if args.device == "cuda" else []
    (into / f"{case.name}.yaml").write_text(json.dumps({"name": case.name, **scenario}) + "\n", encoding="utf-8")
    steps: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        watch = OnCuda(torch) if args.device == "cuda" else OnCpu(stack.enter_context(_tracker()))
        watch.record()
        try:
            made = make(scenario, torch, args.device)
            steps += [one_step(made, watch) for _ in range(RECORDED)]
            watch.stop_recording(into / f"{case.name}.pickle")
            steps += [one_step(made, watch) for _ in range(WARM + TIMED)]
        except torch.OutOfMemoryError as error:
            (into / f"{case.name}.oom.txt").write_text(f"{error}\n", encoding="utf-8")
            write(into, case, row_of(case, scenario, steps, 0, machine, missing, oom=True), steps, machine)
            return
        write(into, case, row_of(case, scenario, steps, RECORDED + WARM, machine, missing), steps, machine)
        profiled(torch, made, watch, into / f"{case.name}.trace.json.gz")


def _tracker() -> Any:
    from oracle.steps.tracker import Tracker

    return Tracker()


def write(into: Path, case: Case, row: dict[str, Any], steps: list[dict[str, Any]], machine: dict[str, Any]) -> None:
    """The row alone in its file, since `validate` takes a folder of such files; all readings beside it."""
    (into / f"{case.name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    told = {"machine": machine, "steps": steps}
    (into / f"{case.name}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def profiled(torch: Any, made: Any, watch: Any, path: Path) -> None:
    """Kineto's trace of one step behind one that warms the profiler up."""
    profiler, kinds = torch.profiler, [torch.profiler.ProfilerActivity.CPU]
    if isinstance(watch, OnCuda):
        kinds.append(profiler.ProfilerActivity.CUDA)
    schedule = profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with profiler.profile(activities=kinds, schedule=schedule) as profile:
        for _ in range(2):
            one_step(made, watch)
            profile.step()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(path, "wb") as out:
            shutil.copyfileobj(source, out)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="on_gpu.step")
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--into", required=True)
    parser.add_argument("--topology", default="")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--makers", default="on_gpu")
    args = parser.parse_args(words)
    case = CASES[args.name]
    if lacking := absent(case.needs):
        print(f"{case.name}: left out, not installed: {', '.join(lacking)}", flush=True)
        return MISSING
    torch = importlib.import_module("torch")
    topology = args.topology or TOPOLOGIES.get(torch.cuda.get_device_name(0) if args.device == "cuda" else "", "")
    scenario = case.scenario_on(topology, small=args.device == "cpu")
    run(case, scenario, torch, args)
    row = json.loads((Path(args.into) / f"{case.name}.jsonl").read_text(encoding="utf-8"))
    print(summary(case.name, row), flush=True)
    return 0


def summary(name: str, row: dict[str, Any]) -> str:
    """A line for the terminal."""
    sizes = {reading["of"]: f"{reading['bytes'] / 2**30:.2f} GiB" for reading in row["readings"]}
    reason = f" ({row['not_modelled']})" if "not_modelled" in row else ""
    if not sizes:
        return f"{name}: OOM{reason}"
    milliseconds = row["step_s"] * 1e3
    return f"{name}: peak {sizes['allocated_peak']}, reserved {sizes['reserved_peak']}, {milliseconds:.1f} ms{reason}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
