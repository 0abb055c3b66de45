"""The shape of the code, read from its syntax: imports run one way, files and functions stay small."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import networkx
import pytest

from checkout import ROOT
from house_figures import Tree, riddles, riddles_of_tests, syntax

# Packages of `simcore`, each of which imports only from those before it. Modules that are still in the root have no
# place here; they take part in the search for cycles.
PACKAGES = ("pipeline", "recording", "inputs", "hardware", "models", "operators", "placement", "program",
            "frameworks", "recipes", "results", "memory", "timing", "validation", "vllm", "sglang", "docgen",
            "simulation", "rl", "calibration", "executors", "tables", "batch", "search", "lint", "verify", "studio",
            "cli")

# Folders of `viz`, and those from which each imports; any of them may import the modules in the root.
VIZ_FOLDERS: dict[str, set[str]] = {"charts": set(), "layouts": {"charts"}, "exports": {"charts", "layouts"},
                                    "pages": {"charts", "layouts"}, "notebook": {"charts", "layouts", "pages"}}

# A library has one door: what it does could be replaced by rewriting the files named here.
DOORS = {
    "networkx": {
        "simcore/models/network.py",
    },
    "simpy": {
        "simcore/timing/timeline.py",
    },
    "ruamel": {
        "simcore/calibration/write.py",
        "simcore/inputs/document.py",
        "simcore/inputs/dump.py",
        "simcore/inputs/yaml_parser.py",
    },
    "pydantic": {
        "simcore/inputs/block.py",
        "simcore/calibration/write.py",
        "simcore/cli/options/usage.py",  # errors of options, which typer checks with it
        "simcore/results/compare.py",
        "simcore/results/found.py",
        "simcore/results/limit.py",
        "simcore/results/settings.py",
        "simcore/hardware/collective_curves.py",
        "simcore/results/detail.py",
        "simcore/results/evidence.py",
        "simcore/hardware/device.py",
        "simcore/hardware/efficiency.py",
        "simcore/inputs/evaluation.py",
        "simcore/simulation/explanation.py",
        "simcore/inputs/generation.py",
        "simcore/validation/runs.py",
        "simcore/results/phases.py",
        "simcore/inputs/quantity.py",
        "simcore/results/report.py",
        "simcore/inputs/scenario.py",
        "simcore/inputs/search_keys.py",
        "simcore/results/engine.py",
        "simcore/validation/side_by_side.py",
        "simcore/results/time.py",
        "simcore/validation/step_times.py",
        "simcore/validation/tolerance.py",
        "simcore/validation/noise.py",
        "simcore/validation/left_out.py",
        "simcore/validation/gaps.py",
        "simcore/validation/as_published.py",
        "simcore/hardware/topology.py",
        "simcore/inputs/training.py",
        "simcore/validation/validate.py",
    },
    "rich": {
        "simcore/cli/solve.py",
        "simcore/cli/sheets/candidates.py",
        "simcore/cli/sheets/found.py",
        "simcore/cli/sheets/grid.py",
        "simcore/cli/sheets/word_table.py",
        "simcore/cli/sheets/limits.py",
        "simcore/cli/sheets/stages.py",
        "simcore/cli/sheets/first_screen.py",
        "simcore/cli/sheets/columns.py",
        "simcore/cli/sheets/comparison.py",
        "simcore/cli/sheets/memory.py",
        "simcore/cli/output.py",
        "simcore/cli/sheets/phases.py",
        "simcore/cli/sheets/engine.py",
        "simcore/cli/sheets/summary.py",
        "simcore/cli/sheets/tables.py",
        "simcore/cli/sheets/time.py",
        "simcore/cli/sheets/validation.py",
    },
    "starlette": {
        "simcore/studio/access.py",
        "simcore/studio/server.py",
    },
    "uvicorn": {
        "simcore/studio/serving.py",
    },
    "typer": {
        "simcore/studio/command.py",
        "simcore/cli/options/choose.py",
        "simcore/cli/options/usage.py",
        "simcore/cli/search.py",
        "simcore/cli/solve.py",
        "simcore/cli/calibrate.py",
        "simcore/cli/convert.py",
        "simcore/cli/app.py",
        "simcore/cli/options/elsewhere.py",
        "simcore/cli/explain.py",
        "simcore/cli/export.py",
        "simcore/cli/first_file.py",
        "simcore/cli/recipes.py",
        "simcore/cli/report.py",
        "simcore/cli/shown.py",
        "simcore/cli/lint.py",
        "simcore/cli/lists.py",
        "simcore/cli/query.py",
        "simcore/cli/read.py",
        "simcore/cli/verify.py",
    },
}
# Files are read by `document` alone, which judges them first; here nobody names the file.
READS_OWN = {
    # a preset, out of the package
    "simcore/models/graph.py": {
        "file.read_text(encoding='utf-8')",
    },
    # tables of arguments and recipes, out of the package
    "simcore/recipes/megatron/arguments.py": {
        "resources.files('simcore.recipes.megatron').joinpath('arguments.json').read_text(encoding='utf-8')",
    },
    "simcore/recipes/huggingface/fields.py": {
        "resources.files('simcore.recipes.huggingface').joinpath('fields.json').read_text(encoding='utf-8')",
    },
    "simcore/recipes/bridge/rows.py": {
        "resources.files('simcore.recipes.bridge').joinpath('fields.json').read_text(encoding='utf-8')",
    },
    # lines of Megatron-LM's main that refusals cite, out of the package
    "simcore/frameworks/cited.py": {
        "resources.files('simcore.frameworks').joinpath('core_lines.json').read_text(encoding='utf-8')",
    },
    "simcore/lint/upstream.py": {
        "resources.files('simcore.lint').joinpath('upstream_keys.json').read_text(encoding='utf-8')",
    },
    "simcore/recipes/bridge/named.py": {
        "resources.files('simcore.recipes.bridge').joinpath('recipes.json').read_text(encoding='utf-8')",
    },
    # the table of models' names, out of the package
    "simcore/models/names.py": {
        "file.read_text(encoding='utf-8')",
    },
    # tables of the package that are no presets: which methods run, what options say
    "simcore/docgen/served.py": {
        "file.read_text(encoding='utf-8')",
    },
    "simcore/docgen/listing.py": {
        "file.read_text(encoding='utf-8')",
    },
    # a bucket of gradients
    "simcore/frameworks/megatron_fsdp/hooks.py": {
        "self.reductions.open(wanted)",
    },
    # our own docs, when they are made
    "simcore/docgen/glossary.py": {
        "page.read_text(encoding='utf-8')",
    },
    # the NVIDIA driver's version in /proc
    "simcore/calibration/machine.py": {
        "_DRIVER.read_text(encoding='utf-8')",
    },
    # written by our own process
    "simcore/calibration/ranks.py": {
        "(Path(folder) / 'points.json').read_text(encoding='utf-8')",
    },
    # digests of files of results, block by block
    "simcore/tables/data_set.py": {
        "path.open('rb')",
    },
    # what `run -o` wrote, line by line
    "simcore/batch/folder.py": {
        "self.results.open('rb')",
    },
    # the same, results one by one
    "simcore/batch/kept.py": {
        "os.open(path, os.O_RDONLY | getattr(os, 'O_BINARY', 0))",
    },
    # the same, under way
    "simcore/batch/unfinished.py": {
        "path.open('rb')",
        "path.open('r+b' if size else 'w+b', buffering=0)",
    },
    # of this package
    "simcore/executors/engine.py": {
        "path.read_bytes()",
    },
    # digest of the pins of this package
    "simcore/verify/environment.py": {
        "file.read_bytes()",
    },
    # to lock
    "simcore/batch/lock.py": {
        "os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, 'O_NOFOLLOW', 0), 438)",
    },
    # to put names of a folder on the disk
    "simcore/inputs/paths.py": {
        "os.open(folder, os.O_RDONLY)",
    },
    # in the place of closed streams
    "simcore/cli/stdio.py": {
        "os.open(os.devnull, os.O_RDWR)",
    },
    # of the page of the studio
    "simcore/studio/server.py": {
        "files('simcore.studio').joinpath('page', name).read_text(encoding='utf-8')",
    },
    # of viz: styles and scripts of pages
    "viz/pages/studio.py": {
        "files('viz.pages').joinpath('page.js').read_text(encoding='utf-8')",
    },
    "viz/stylesheet.py": {
        "files('viz').joinpath('style.css').read_text(encoding='utf-8')",
    },
    "viz/pages/page.py": {
        "files('viz.pages').joinpath('page.js').read_text(encoding='utf-8')",
    },
    "viz/notebook/fragment.py": {
        "files('viz.notebook').joinpath('notebook.css').read_text(encoding='utf-8')",
    },
}
READERS = {"read_text", "read_bytes", "open", "fdopen", "fromfile", "genfromtxt", "loadtxt", "memmap", "mmap"}
"""Methods of any object; the next ones are functions of these modules."""
LOADERS = {"json.load", "pickle.load", "np.load", "tomllib.load", "csv.reader", "ElementTree.parse"}
VIZ_READS = {"simcore.results.compare", "simcore.results.detail", "simcore.results.evidence", "simcore.results.found",
             "simcore.results.frame",
             "simcore.results.phases", "simcore.results.report", "simcore.results.time", "simcore.units"}

MAX_FILE, MAX_FUNCTION, MAX_MEDIAN = 400, 40, 10
MAX_FOLDER = 20
"""Modules in a folder."""
MAX_VIZ_ROOT = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(package: str) -> list[Path]:
    """All but `simcore/verify/real`: scripts of another environment, shared with the probes of `tests/truth`."""
    return sorted(path for path in (ROOT / package).rglob("*.py") if not {"_data", "real"} & set(path.parts))


def name_of(path: Path) -> str:
    """The path from the checkout's root."""
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """`simcore/models/families/llama.py` is `simcore.models.families.llama`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(scope="module", autouse=True)
def _let_go() -> Iterator[None]:
    """Syntax trees of a thousand files are large: they are dropped behind the last rule."""
    yield
    for kept in (syntax, imported):
        kept.cache_clear()


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Dotted names of all modules that a file imports, at its top and inside functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (_module(str(node.module), alias.name) for alias in node.names)


def _module(module: str, name: str) -> str:
    """The modules of an import: `from simcore.cli import app` imports simcore.cli.app, `... import x` of it too."""
    inner = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if inner.with_suffix(".py").exists() or inner.is_dir() else module


def within(package: str, path: Path) -> set[str]:
    """Dotted names of all modules of a package of ours that a file imports."""
    return {name for name in imported(path) if name.startswith(f"{package}.")}


def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(syntax(path)) if isinstance(node, Function)]


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circles({module_of(path): within("simcore", path) for path in files("simcore")}) == []


def test_no_folder_imports_itself_in_a_circle() -> None:
    folders: dict[str, set[str]] = {}
    for path in (path for path in files("simcore") if path.parent != ROOT / "simcore"):
        inside = {name.rpartition(".")[0] for name in within("simcore", path)} - {"simcore"}
        folders.setdefault(module_of(path.parent / "__init__.py"), set()).update(inside)
    assert circles({name: others - {name} for name, others in folders.items()}) == []


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules, or of folders, that import each other."""
    graph = networkx.DiGraph([(name, other) for name, others in imports.items() for other in others])
    return sorted(sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1)


def test_every_package_has_its_place() -> None:
    folders = {path.relative_to(ROOT / "simcore").parts[0] for path in files("simcore")
               if path.parent != ROOT / "simcore"}
    assert folders == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package: str) -> None:
    later = PACKAGES[PACKAGES.index(package) + 1:]
    wrong = [f"{name_of(path)} imports {name}" for path in files(f"simcore/{package}")
             for name in within("simcore", path) if name.split(".")[1] in later]
    assert wrong == []


def test_a_library_has_one_door() -> None:
    wrong = [f"{name_of(path)} imports {library}" for path in files("simcore")
             for library in {name.partition(".")[0] for name in imported(path)} & set(DOORS)
             if name_of(path) not in DOORS[library]]
    assert wrong == []


def test_files_have_one_door() -> None:
    wrong = [f"{name_of(path)}: {reading}" for path in [*files("simcore"), *files("viz")]
             if name_of(path) != "simcore/inputs/document.py"
             for reading in set(_readings(syntax(path))) - READS_OWN.get(name_of(path), set())]
    assert wrong == []


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


def test_viz_reads_reports_alone() -> None:
    wrong = [f"{name_of(path)} imports {name}" for path in files("viz")
             for name in within("simcore", path) - VIZ_READS | ({"simcore"} & set(imported(path)))]
    assert wrong == []


def test_every_folder_of_viz_has_its_place_and_is_small() -> None:
    folders = {name_of(path.parent): len(list(path.parent.glob("*.py"))) for path in files("viz")}
    assert folders.pop("viz") <= MAX_VIZ_ROOT
    assert folders.keys() == {f"viz/{folder}" for folder in VIZ_FOLDERS}
    assert [folder for folder, num_modules in folders.items() if num_modules > MAX_FOLDER] == []


def test_imports_of_viz_run_one_way() -> None:
    wrong = []
    for path in files("viz"):
        folder = path.parent.name
        allowed = {folder, *VIZ_FOLDERS[folder]} if folder in VIZ_FOLDERS else set()
        used = {parts[1] for parts in (name.split(".") for name in within("viz", path)) if len(parts) > 2}
        wrong += [f"{name_of(path)} imports from viz.{other}" for other in used - allowed]
    assert wrong == []


def test_no_module_and_no_folder_of_viz_imports_itself_in_a_circle() -> None:
    assert circles({module_of(path): within("viz", path) for path in files("viz")}) == []
    assert circles(VIZ_FOLDERS) == []


def test_files_and_functions_are_small() -> None:
    sizes = {name_of(path): len(path.read_text(encoding="utf-8").splitlines())
             for path in [*files("simcore"), *files("viz")]}
    assert {name: num_lines for name, num_lines in sizes.items() if num_lines > MAX_FILE} == {}
    long = [f"{name} {function.name}: {length(function)} lines" for name in sizes
            for function in functions(ROOT / name) if length(function) > MAX_FUNCTION]
    assert long == []


def test_every_folder_of_the_engine_is_small() -> None:
    modules = [path for path in files("simcore") if path.name != "__init__.py"]
    folders = Counter(name_of(path.parent) for path in modules)
    assert {folder: num for folder, num in folders.items() if num > MAX_FOLDER} == {}


def test_no_module_is_asked_what_it_has() -> None:
    """Offers of a framework, an implementation or a trainer are fields of a record, which mypy sees."""
    asking = [f"{name_of(path)}: {node.id}" for path in files("simcore") for node in ast.walk(syntax(path))
              if isinstance(node, ast.Name) and node.id in ("hasattr", "ModuleType")]
    assert set(asking) <= {"simcore/__init__.py: ModuleType"}


def test_most_functions_are_read_at_a_glance() -> None:
    assert median(length(f) for path in files("simcore") for f in functions(path)) < MAX_MEDIAN


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    tree = Tree(ROOT)
    places = [*riddles(tree), *riddles_of_tests(tree)]
    assert places == []


def test_no_framework_is_asked_for_by_name() -> None:
    asking = [f"{name_of(path)}: {ast.unparse(node)}" for path in files("simcore")
              if not name_of(path).startswith("simcore/frameworks")
              for node in ast.walk(syntax(path)) if _asks_by_name(node)]
    assert asking == []


ASKERS = {"accelerate", "autoep", "automodel", "autotp", "ddp", "deepspeed", "fsdp", "fsdp1", "fsdp2", "megatron",
          "trl", "verl", "zero", "zero0", "zero1", "zero2", "zero3"}
RECORDS = {"HfOptions.automodel"}
"""Options of another code base's layers, which stand in the place of some of these."""


def test_options_of_layers_say_what_is_done_and_not_who_asks() -> None:
    named = {f"{owner.name}.{name}" for path in files("simcore/operators") for owner in ast.walk(syntax(path))
             if isinstance(owner, ast.ClassDef) and "ImplementationOptions" in map(ast.unparse, owner.bases)
             for field in owner.body if isinstance(field, ast.AnnAssign)
             if ASKERS & {*(name := ast.unparse(field.target)).split("_")}}
    assert named - RECORDS == set()


def _asks_by_name(node: ast.AST) -> bool:
    """`framework == ...`, `x.framework.name in (...)`, `match framework`."""
    if isinstance(node, ast.Match):
        return _is_framework(node.subject)
    return isinstance(node, ast.Compare) and any(
        _is_framework(side) and not isinstance(operator, ast.Is | ast.IsNot)
        for side, operator in zip((node.left, *node.comparators), (node.ops[0], *node.ops), strict=True)
    )


def _is_framework(node: ast.expr) -> bool:
    """`x.framework`, `x.framework.name`, and a value by that key: `x["framework"]`, `x.get("framework")`."""
    words = ast.unparse(node).split(".")
    return words[-1] == "framework" or words[-2:] == ["framework", "name"] or _is_by_key(node)


def _is_by_key(node: ast.expr) -> bool:
    key = (node.slice if isinstance(node, ast.Subscript) else node.args[0]
           if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args else None)
    return isinstance(key, ast.Constant) and key.value == "framework"
