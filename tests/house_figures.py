"""Figures of the shape of the code, of one checkout or of two side by side.

    python tests/house_figures.py                                          # this checkout
    git worktree add /tmp/then 0b15b66
    python tests/house_figures.py /tmp/then .                              # before the packages, and now
    python tests/house_figures.py --list "riddle openings" --in simcore    # places instead of a number

Everything is read from syntax trees, so a tree of any age can be measured; nothing is imported from it. Figures count
`simcore` and `viz`, unless their name says more.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final, TypeVar

import networkx

PRODUCT: Final = ("simcore", "viz")
RIDDLES: Final = re.compile(r"(Of|What|Whether|Who|Whose|Which|Where|When|How)\b")
NOBODY: Final = re.compile(r"\b(nobody|somebody)\b", re.IGNORECASE)
VAGUE: Final = frozenset({"found", "made", "told", "one", "whole", "given", "mine", "held"})
LONG_FILE: Final = 400
# Classes of a framework's data-parallel record and hooks, by today's and by the former names.
HOOKS_AND_STRATEGIES: Final = re.compile(r"\w*(Flow|Hooks|Strategy)|Unshard|Buckets|Queues|Reducer|Zero|Wrapped")
# Expressions that stand for a module: `hasattr(module, "default_etp")`, `getattr(CODES[name], "FSDP1", {})`.
MODULES: Final = re.compile(r"(module|code|operators)$|(import_module\(|CODES\b)")
PAIRS: Final = "tuple[tuple[str, str], ...]"
MANY_MEMBERS: Final = 3

N = TypeVar("N", bound=ast.AST)


@cache
def syntax(path: Path) -> ast.Module:
    """Syntax tree of a Python file; it is read once."""
    return ast.parse(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Tree:
    """Syntax trees of a checkout's Python files, by paths relative to its root."""

    root: Path

    @cached_property
    def product(self) -> dict[str, ast.Module]:
        """Syntax trees of the files of `simcore` and `viz`, without the scripts that other environments run."""
        return {name: tree for folder in PRODUCT for name, tree in self.parsed(folder).items()
                if not name.startswith("simcore/verify/real/")}

    @cached_property
    def tests(self) -> dict[str, ast.Module]:
        """Syntax trees of the files of `tests`, without the scripts that made measured data."""
        return {name: tree for name, tree in self.parsed("tests").items() if not name.startswith("tests/truth/")}

    def parsed(self, folder: str) -> dict[str, ast.Module]:
        """Syntax trees of a folder's files, in the order of their paths."""
        return {path.relative_to(self.root).as_posix(): syntax(path)
                for path in sorted(self.root.joinpath(folder).rglob("*.py"))}

    def num_lines(self, name: str) -> int:
        """Number of lines of a file."""
        return len(self.root.joinpath(name).read_text(encoding="utf-8").splitlines())

    @cached_property
    def modules(self) -> dict[str, str]:
        """Path of each module of the product by its dotted name."""
        return {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in self.product}

    @cached_property
    def imports(self) -> networkx.DiGraph[str]:
        """Dotted names of modules, with an edge to each module that a module imports, also inside its functions."""
        graph: networkx.DiGraph[str] = networkx.DiGraph()
        graph.add_nodes_from(self.modules)
        for module, name in self.modules.items():
            graph.add_edges_from((module, other) for other in self._imported(self.product[name]) if other != module)
        return graph

    def _imported(self, tree: ast.Module) -> set[str]:
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                names |= {full if full in self.modules else node.module for full in inner.values()}
        return names & self.modules.keys()


# --- figures: each yields the places that it counts ---

def root_files(tree: Tree) -> Iterator[str]:
    """Files directly in `simcore`."""
    yield from (name for name in tree.product if name.startswith("simcore/") and name.count("/") == 1)


def largest_package(tree: Tree) -> Iterator[str]:
    """Files of the folder under `simcore` that has most of them."""
    folders = Counter(name.rpartition("/")[0] for name in tree.product if name.startswith("simcore/"))
    largest = max(folders, key=lambda folder: folders[folder])
    yield from (name for name in tree.product if name.rpartition("/")[0] == largest)


def long_files(tree: Tree) -> Iterator[str]:
    """Files with more than 400 lines."""
    yield from (f"{name} ({lines})" for name in tree.product if (lines := tree.num_lines(name)) > LONG_FILE)


def circles(tree: Tree) -> Iterator[str]:
    """Groups of modules that import each other."""
    for group in networkx.strongly_connected_components(tree.imports):
        if len(group) > 1:
            yield ", ".join(sorted(group))


def imported_once(tree: Tree) -> Iterator[str]:
    """Modules that exactly one other module imports."""
    yield from (name for module, name in tree.modules.items() if tree.imports.in_degree(module) == 1)


def module_attributes(tree: Tree) -> Iterator[str]:
    """Calls of `hasattr` and `getattr` on modules."""
    for name, node in nodes(tree.product, ast.Call):
        if ast.unparse(node.func) in ("hasattr", "getattr") and MODULES.match(ast.unparse(node.args[0])):
            yield f"{place(name, node)} {ast.unparse(node)}"


def string_pairs(tree: Tree) -> Iterator[str]:
    """Fields of classes that hold pairs of strings."""
    for name, node in nodes(tree.product, ast.ClassDef):
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and PAIRS in ast.unparse(field.annotation):
                yield f"{place(name, field)} {node.name}.{ast.unparse(field.target)}"


def class_questions(tree: Tree) -> Iterator[str]:
    """Calls of `isinstance` with a class of hooks or of strategies."""
    for name, node in nodes(tree.product, ast.Call):
        if ast.unparse(node.func) == "isinstance" and any(
                isinstance(part, ast.Name | ast.Attribute) and HOOKS_AND_STRATEGIES.fullmatch(last_word(part))
                for part in ast.walk(node.args[1])):
            yield f"{place(name, node)} {ast.unparse(node)}"


def riddles(tree: Tree) -> Iterator[str]:
    """Docstrings, of names too, that begin with Of, What, Who, Which, How or the like, or name a person for a thing."""
    yield from _riddles(tree.product)


def riddles_of_tests(tree: Tree) -> Iterator[str]:
    """Docstrings under `tests` that begin so."""
    yield from _riddles(tree.tests)


def _riddles(files: dict[str, ast.Module]) -> Iterator[str]:
    for name, node in documented(files):
        for at, text in _docstrings(node):
            if RIDDLES.match(text) or NOBODY.search(text):
                yield f"{place(name, at)} {text.splitlines()[0]}"


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[ast.AST, str]]:
    """Texts that document a module, class or function, and the names assigned in a module or class."""
    for number, at in enumerate(node.body):
        if isinstance(at, ast.Expr) and isinstance(at.value, ast.Constant) and isinstance(at.value.value, str) and (
                number == 0 or isinstance(node.body[number - 1], ast.Assign | ast.AnnAssign)):
            yield at, at.value.value.strip()


def undocumented(tree: Tree) -> Iterator[str]:
    """Public functions, and public methods of public classes, without a docstring."""
    for name, module in tree.product.items():
        classes = [node for node in module.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for body in (module.body, *(node.body for node in classes)):
            for node in body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                    yield f"{place(name, node)} {node.name}"


def vague_variables(tree: Tree) -> Iterator[str]:
    """Assignments inside functions to names that do not say what they hold."""
    for name, module in tree.product.items():
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
        inside = {node: None for function in functions for node in ast.walk(function) if isinstance(node, ast.Name)}
        yield from (f"{place(name, node)} {node.id}" for node in inside
                    if isinstance(node.ctx, ast.Store) and node.id in VAGUE)


def unnamed_results(tree: Tree) -> Iterator[str]:
    """Functions that return a tuple of three or more members, whose names are then nowhere."""
    for name, node in nodes(tree.product, ast.FunctionDef):
        if node.returns is not None and any(map(_has_many_members, _alternatives(node.returns))):
            yield f"{place(name, node)} {node.name} -> {ast.unparse(node.returns)}"


def _alternatives(annotation: ast.expr) -> Iterator[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        yield from (*_alternatives(annotation.left), *_alternatives(annotation.right))
    else:
        yield annotation


def _has_many_members(annotation: ast.expr) -> bool:
    return (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "tuple"
            and isinstance(annotation.slice, ast.Tuple) and len(annotation.slice.elts) >= MANY_MEMBERS
            and "..." not in [ast.unparse(member) for member in annotation.slice.elts])


COUNTED: Final[dict[str, Callable[[Tree], Iterator[str]]]] = {
    "files": lambda tree: iter(tree.product),
    "files in the root of simcore": root_files,
    "files of the largest package": largest_package,
    "files over 400 lines": long_files,
    "import circles": circles,
    "modules imported by one file only": imported_once,
    "hasattr, getattr on modules": module_attributes,
    "fields of string pairs": string_pairs,
    "isinstance on hooks and strategies": class_questions,
    "riddle openings": riddles,
    "riddle openings in tests": riddles_of_tests,
    "public functions without docstring": undocumented,
    "vague local names": vague_variables,
    "tuple returns of 3 and more": unnamed_results,
}
LONGEST: Final[dict[str, Callable[[Tree], int]]] = {
    "lines of the longest file": lambda tree: max(map(tree.num_lines, tree.product)),
    "lines of the longest function": lambda tree: max(
        (node.end_lineno or node.lineno) - node.lineno + 1 for _, node in nodes(tree.product, ast.FunctionDef)),
}


def figures(root: Path) -> dict[str, int]:
    """Every figure of a checkout by its name."""
    tree = Tree(root.resolve())
    return ({name: sum(1 for _ in count(tree)) for name, count in COUNTED.items()}
            | {name: size(tree) for name, size in LONGEST.items()})


# --- syntax ---

def nodes(files: dict[str, ast.Module], *kinds: type[N]) -> Iterator[tuple[str, N]]:
    """Nodes of the given kinds with the paths of their files."""
    for name, tree in files.items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kinds))


def documented(files: dict[str, ast.Module]) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    """Nodes that may have a docstring with the paths of their files."""
    for name, tree in files.items():
        yield from ((name, node) for node in _statements(tree)
                    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A node and the statements inside it, without the expressions, which are most of a tree."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _statements(inner)


def place(name: str, node: ast.AST) -> str:
    """Path and line of a node."""
    return f"{name}:{getattr(node, 'lineno', 1)}"


def last_word(node: ast.Name | ast.Attribute) -> str:
    """Name after the last dot."""
    return node.id if isinstance(node, ast.Name) else node.attr


def main(words: list[str]) -> int:
    """Prints the figures of the given checkouts, a column each, or the places of one figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path(__file__).resolve().parents[1]])
    parser.add_argument("--list", choices=tuple(COUNTED), help="print the places of this figure, of the last checkout")
    parser.add_argument("--in", dest="within", default="", help="only places under this path")
    asked = parser.parse_args(words)
    if asked.list:
        places = COUNTED[asked.list](Tree(asked.roots[-1].resolve()))
        sys.stdout.writelines(f"{text}\n" for text in places if text.startswith(asked.within))
        return 0
    columns = [figures(root) for root in asked.roots]
    for name in columns[0]:
        sys.stdout.write(f"{name:36}" + "".join(f"{column[name]:>9,}" for column in columns) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
