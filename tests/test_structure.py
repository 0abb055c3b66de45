"""The shape of the code, read from its syntax: imports run one way, files and functions stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A file imports only from files above it. A name that ends in `/` is a folder, whose files may import each other;
# a file that is also named by itself stands where it is named.
ORDER = (
    "errors", "paths", "stdio", "signs", "exact", "bounds", "held", "counted", "units", "scaling", "packed", "data",
    "yaml_parser", "document", "file_cache", "quantity", "nvme", "node_spread", "block",
    "training", "generation", "scenario", "keys", "sweep", "loading", "device", "efficiency", "curves",
    "topology", "tensor", "models/blocks", "models/architecture", "product", "rows", "checkpoint", "tape", "halves",
    "recording",
    "operators/", "models/", "graph", "frozen", "flops", "mesh", "form", "schedule", "transfer", "reducer", "zero",
    "wrapped", "libraries", "dispatch", "framework", "lora", "lora_names", "lora_bridge", "lora_automodel", "routing",
    "packing", "job", "stages", "frameworks/", "plan", "update", "on_host", "buffers", "chunks", "fold", "schedules/",
    "setup", "tile", "outline", "builder", "edges", "program", "stem", "tiles", "flow", "stage_inputs",
    "stage_buffers", "lower", "flows/",
    "ledger", "waves", "exponentials", "cost", "collective", "routes", "launch", "quantiles", "speed", "served",
    "phased", "detail", "report", "traffic", "series", "beside", "skeleton", "streams", "timeline", "breakdown",
    "clocked", "rates", "adapters", "workspace", "outside", "reserve", "band", "assemble", "effort", "received",
    "spread", "drawn", "host", "lengths", "forward", "policy", "journal", "vllm/", "serve", "refit", "laid",
    "phase_series",
    "phase_report", "rl", "inventory", "spans", "lifetimes", "closeup", "simulate", "starter", "advice", "compare",
    "measured",
    "tolerance", "left_out", "timing", "validate", "frame", "frame_file", "table", "columns", "summary",
    "memorysheet", "timesheet", "servesheet", "phasesheet", "interrupts", "crew", "batch", "lock", "part",
    "fingerprint", "contents", "folder", "finding", "output", "runs", "glossary", "fields",
    "tabulate", "explanation", "calibration/", "machines", "page", "explain", "export", "plain_pickle", "frames",
    "dump", "training_log", "side_by_side", "read_back", "presets", "ending", "cli", "__init__", "__main__",
)  # fmt: skip

# A library has one door: what it does could be replaced by rewriting the files named here.
DOORS = {
    "networkx": {"graph"},
    "simpy": {"timeline"},
    "ruamel": {"document", "yaml_parser", "calibration/write"},
    "pydantic": {"block", "quantity", "training", "generation", "scenario", "device", "efficiency", "curves",
                 "topology", "detail", "report", "served", "phased", "speed", "compare", "explanation", "measured",
                 "timing", "tolerance", "validate", "calibration/write", "side_by_side"},
    "rich": {"table", "columns", "summary", "memorysheet", "timesheet", "servesheet", "phasesheet", "output"},
    "typer": {"cli", "calibration/command", "page", "explain", "export", "read_back"},
}
# Files are read by `document` alone, which judges them first; here nobody names the file.
READS_OWN = {
    "graph": {"file.read_text(encoding='utf-8')"},  # a preset, out of the package
    "flows/queued": {"self.reductions.open(wanted)"},  # a bucket of gradients
    "glossary": {"page.read_text(encoding='utf-8')"},  # our own docs, when they are made
    "calibration/machine": {"_DRIVER.read_text(encoding='utf-8')"},  # the NVIDIA driver's version in /proc
    "calibration/ranks": {"(Path(folder) / 'points.json').read_text(encoding='utf-8')"},  # written by our own process
    "contents": {"path.open('rb')"},  # digests of files of results, block by block
    "folder": {"self.results.open('rb')"},  # what `run -o` wrote, line by line
    "part": {"path.open('rb')", "path.open('r+b' if size else 'w+b', buffering=0)"},  # the same, under way
    "fingerprint": {"path.read_bytes()"},  # of this package
    "lock": {"os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, 'O_NOFOLLOW', 0), 438)"},  # to lock
    "paths": {"os.open(folder, os.O_RDONLY)"},  # to put names of a folder on the disk
    "stdio": {"os.open(os.devnull, os.O_RDWR)"},  # in the place of closed streams
    "page": {"files('viz').joinpath(name).read_text(encoding='utf-8')"},  # of viz: styles and scripts of pages
    "sheet": {"files('viz').joinpath('style.css').read_text(encoding='utf-8')",
              "files('viz').joinpath('notebook.css').read_text(encoding='utf-8')"},
    "figures": {"files('viz').joinpath('style.css').read_text(encoding='utf-8')"},
}  # fmt: skip
READERS = {"read_text", "read_bytes", "open", "fdopen", "fromfile", "genfromtxt", "loadtxt", "memmap", "mmap"}
"""Of whatever object; the next ones of these modules."""
LOADERS = {"json.load", "pickle.load", "np.load", "tomllib.load", "csv.reader", "ElementTree.parse"}
VIZ_READS = {"compare", "detail", "frame", "report", "speed", "units"}

MAX_FILE, MAX_FUNCTION, MAX_MEDIAN = 300, 40, 10
TABLES = ("operators/", "frameworks/")  # data in the shape of code, as long as it has to be

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py") if "_data" not in path.parts)


def name_of(path: Path) -> str:
    """`simcore/models/llama.py` is `models/llama`."""
    return "/".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix("/__init__")


def place_of(name: str) -> str | None:
    """The entry of ORDER that a file or folder stands at."""
    if name in ORDER:
        return name
    return next((entry for entry in ORDER if entry.endswith("/") and f"{name}/".startswith(entry)), None)


def imported(path: Path) -> Iterator[str]:
    """Dotted names of all modules that a file imports, at its top and inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (_module(str(node.module), alias.name) for alias in node.names)


def _module(module: str, name: str) -> str:
    """`from simcore import table` imports simcore.table, `from simcore.table import verdict` too."""
    inner = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if inner.with_suffix(".py").exists() or inner.is_dir() else module


def within(package: str, path: Path) -> set[str]:
    """What a file imports from a package of ours, as names of ORDER."""
    ours = {name for name in imported(path) if name.startswith(f"{package}.")}
    return {name.removeprefix(f"{package}.").replace(".", "/") for name in ours}


def functions(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_every_file_has_its_place() -> None:
    assert [name_of(path) for path in files("simcore") if place_of(name_of(path)) is None] == []


def test_every_place_has_its_file() -> None:
    taken = {place_of(name_of(path)) for path in files("simcore")}
    assert [place for place in ORDER if place not in taken] == []


@pytest.mark.parametrize("path", files("simcore"), ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    own = place_of(name_of(path))
    for other in within("simcore", path):
        place = place_of(other)
        assert place is not None, f"{other} has no place in ORDER"
        same_folder = own == place and str(own).endswith("/")
        assert same_folder or ORDER.index(place) < ORDER.index(str(own)), f"imports {other}, which comes later"


@pytest.mark.parametrize("path", files("simcore"), ids=name_of)
def test_a_library_has_one_door(path: Path) -> None:
    used = {name.partition(".")[0] for name in imported(path)} & set(DOORS)
    assert {library for library in used if name_of(path) not in DOORS[library]} == set()


@pytest.mark.parametrize("path", [*files("simcore"), *files("viz")], ids=name_of)
def test_files_have_one_door(path: Path) -> None:
    if name_of(path) == "document":
        return
    assert set(_readings(ast.parse(path.read_text(encoding="utf-8")))) <= READS_OWN.get(name_of(path), set())


@pytest.mark.parametrize("text", [
    "open(p)", "open(p, 'r')", "open(p, mode='r+')", "p.open()", "p.open('rb')", "p.open(mode)", "io.open(p, 'rb')",
    "os.open(p, flags)", "os.fdopen(3)", "json.load(f)", "p.read_text()", "p.read_bytes()", "np.fromfile(p)"])
def test_another_door_would_be_found(text: str) -> None:
    assert list(_readings(ast.parse(text))) == [text]


@pytest.mark.parametrize("text", ["p.open('w')", "p.open(mode='wb')", "open(p, 'x')", "json.loads(p)", "read_bytes(p)"])
def test_what_writes_is_no_door(text: str) -> None:
    assert list(_readings(ast.parse(text))) == []


def _readings(tree: ast.AST) -> Iterator[str]:
    """Calls that may read a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _reads(node):
            yield ast.unparse(node)


def _reads(call: ast.Call) -> bool:
    """The builtin `open`, or a method with a reader's name, unless its mode says that it writes."""
    if isinstance(call.func, ast.Name):
        return call.func.id in ("open", "fdopen") and not _writes(call)
    if not isinstance(call.func, ast.Attribute):
        return False
    return ast.unparse(call.func) in LOADERS or (call.func.attr in READERS and not _writes(call))


def _writes(call: ast.Call) -> bool:
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    modes = [str(one.value) for one in given if isinstance(one, ast.Constant)]
    return any(mode[:1] in tuple("wxa") and set(mode) <= set("wxabt") for mode in modes)


@pytest.mark.parametrize("path", files("viz"), ids=name_of)
def test_viz_reads_reports_alone(path: Path) -> None:
    assert within("simcore", path) <= VIZ_READS
    assert "simcore" not in imported(path)


@pytest.mark.parametrize("path", [*files("simcore"), *files("viz")], ids=name_of)
def test_files_and_functions_are_small(path: Path) -> None:
    if name_of(path).startswith(TABLES):
        return
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_FILE
    assert [f"{f.name}: {length(f)} lines" for f in functions(path) if length(f) > MAX_FUNCTION] == []


def test_most_functions_are_read_at_a_glance() -> None:
    assert median(length(f) for path in files("simcore") for f in functions(path)) < MAX_MEDIAN


@pytest.mark.parametrize("path", files("simcore"), ids=name_of)
def test_no_framework_is_asked_for_by_name(path: Path) -> None:
    if name_of(path).startswith("frameworks"):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [ast.unparse(node) for node in ast.walk(tree) if _asks_by_name(node)] == []


def _asks_by_name(node: ast.AST) -> bool:
    """`framework == ...`, `x.framework.name in (...)`, `match framework`."""
    if isinstance(node, ast.Match):
        return _is_framework(node.subject)
    return isinstance(node, ast.Compare) and any(
        _is_framework(side) and not isinstance(operator, ast.Is | ast.IsNot)
        for side, operator in zip((node.left, *node.comparators), (node.ops[0], *node.ops), strict=True)
    )


def _is_framework(node: ast.expr) -> bool:
    words = ast.unparse(node).split(".")
    return words[-1] == "framework" or words[-2:] == ["framework", "name"]
