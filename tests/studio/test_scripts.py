"""The modules of the page: names that they take from each other are imported, and no other are; none does too much."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from checkout import ROOT
from simcore.studio import server

PAGE = ROOT / "simcore" / "studio" / "page"
MAX_LINES = 400
IMPORTED = re.compile(r'^import \{ ([^}]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
ALONE = r"(?<![\w$])(?:(?<!\.)|(?<=\.\.\.))"
"""Beginning of a name that is no property of something; it may be spread."""
EXPORTED = re.compile(r"^export (?:const|class|function\*?|async function) (\w+)", re.MULTILINE)


def faults(texts: Mapping[str, str]) -> list[str]:
    """Names that a module uses and does not import, imports and does not use, or imports from where there are none."""
    exported = {module: set(EXPORTED.findall(text)) for module, text in texts.items()}
    every, found = set().union(*exported.values()), list[str]()
    for module, text in texts.items():
        taken = {(one.split(" as ")[0].strip(), one.split(" as ")[-1].strip(), source)
                 for names, source in IMPORTED.findall(text) for one in names.split(",")}
        rest = re.sub(r"/\*.*?\*/", "", IMPORTED.sub("", text), flags=re.DOTALL)
        found += [f"{module}: {name} is not in {source}" for name, _, source in taken
                  if name not in exported.get(source, set())]
        found += [f"{module}: {own} is imported and not used" for _, own, _ in taken
                  if not re.search(rf"{ALONE}{own}\b", rest)]
        here = exported[module] | {own for _, own, _ in taken} | set(re.findall(r"(?:const|let) (\w+) =", rest))
        here |= set(re.findall(r"^ +(?:async )?(\w+)\(.*\) \{$", rest, re.MULTILINE))  # methods
        found += [f"{module}: {name} is not imported" for name in sorted(every - here)
                  if re.search(rf"{ALONE}{name}(?=\()|new {name}\b", rest)]
    return sorted(found)


def texts_of(folder: Path) -> dict[str, str]:
    """Texts of the modules of a folder, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.js"))}


def test_modules_import_what_they_use() -> None:
    texts = texts_of(PAGE)
    assert faults(texts) == []
    assert sorted(texts) == sorted(server.SCRIPTS), "each is served"
    lacking = texts["app"].replace(", value_of, with_value }", ", value_of }")
    assert faults({**texts, "app": lacking}) == ["app: with_value is not imported"]
    idle = texts["panels"] + 'import { tree } from "./steps.js";\n'
    assert faults({**texts, "panels": idle}) == ["panels: tree is imported and not used"]


def test_no_module_is_long() -> None:
    assert [name for name, text in texts_of(PAGE).items() if text.count("\n") > MAX_LINES] == []
