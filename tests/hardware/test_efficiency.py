"""Efficiencies of kernels: the built-in files, and files of the user.

`python -m tests.hardware.test_efficiency --write` takes numbers over anew where a file has them from another.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from simcore.errors import InputError
from simcore.hardware.efficiency import efficiency_names, load_efficiency
from simcore.inputs.shipped import data_folder


def edited(folder: Path, old: str, new: str) -> Path:
    text = (data_folder("topologies") / "efficiency" / "h100.yaml").read_text(encoding="utf-8")
    assert old in text
    path = folder / "mine.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


GEMM = str(load_efficiency("h100").kernels.gemm.compute.value)  # type: ignore[union-attr]


def quantities(data: dict[str, Any], key: str = "") -> dict[str, dict[str, str]]:
    """By key, with dots."""
    if "value" in data:
        return {key: data}
    inner = [quantities(part, f"{key}.{name}") for name, part in data.items() if isinstance(part, dict)]
    return {name: found for part in inner for name, found in part.items()}


@pytest.mark.parametrize("name", efficiency_names())
def test_built_in_files_load_and_hash(name: str) -> None:
    efficiency = load_efficiency(name)
    assert efficiency.name == name
    assert hash(efficiency) == hash(load_efficiency(name))
    assert copy.deepcopy(efficiency) == efficiency


def taken_over(source: str, key: str) -> str | None:
    """The value that stands elsewhere at the same key, where a source says so: of one file, or the median of many."""
    named = re.fullmatch(r"(as|median of) ([a-z0-9, -]+): nobody measured it here", source)
    if named is None:
        return None
    found = [quantities(load_efficiency(name).model_dump(by_alias=True))[key] for name in named[2].split(", ")]
    return sorted((given["value"] for given in found), key=lambda value: float(value.split()[0].rstrip("%")))[
        len(found) // 2]


@pytest.mark.parametrize("name", efficiency_names())
def test_what_is_taken_over_from_another_file_is_what_stands_there(name: str) -> None:
    """After a fit: `python -m tests.hardware.test_efficiency --write`."""
    for key, given in quantities(load_efficiency(name).model_dump(by_alias=True)).items():
        value = taken_over(given["source"], key)
        assert value in (None, given["value"]), key
        assert value is None or given["kind"] == "assumed", key


@pytest.mark.parametrize("name", efficiency_names())
def test_every_built_in_file_is_used_by_a_machine(name: str) -> None:
    machines = data_folder("topologies").glob("*.yaml")
    assert any(f"\nefficiency: {name}\n" in path.read_text(encoding="utf-8") for path in machines)


def test_an_unknown_name_is_told_where_it_was_asked_for() -> None:
    with pytest.raises(InputError, match=r"mine.yaml:3: no efficiency 'h1000'; did you mean h100\?") as error:
        load_efficiency("h1000", "mine.yaml:3")
    assert all(name in str(error.value) for name in efficiency_names())


def test_a_path_starts_from_the_folder_that_is_given(tmp_path: Path) -> None:
    edited(tmp_path, f'{{value: "{GEMM}", kind: assumed', '{value: "50%", kind: measured')
    gemm = load_efficiency("mine.yaml", folder=tmp_path).kernels.gemm.compute
    assert gemm is not None
    assert (gemm.si, gemm.kind) == (0.5, "measured")


@pytest.mark.parametrize(("old", "new", "message"), [
    (f'"{GEMM}"', '"123%"', "kernels.gemm.compute: must be more than zero and at most 100%"),
    (f'"{GEMM}"', '"0.723"', "kernels.gemm.compute: expected a number with the unit %"),
    ('"2 us"', '"2 MB"', "shortest: expected a quantity in s"),
    ("  optimizer:", "  optimiser:", "kernels.optimiser: unknown key"),
    ("  fp8:", "  fp16:", "low_precision.fp16: unknown key"),
    ("name: h100\n", "", "name: is missing"),
])
def test_wrong_files_are_told_where_and_what(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        load_efficiency(edited(tmp_path, old, new))
    assert message in str(error.value)
    assert "mine.yaml:" in str(error.value)


def test_all_mistakes_are_told_together(tmp_path: Path) -> None:
    text = edited(tmp_path, f'"{GEMM}"', '"0%"').read_text(encoding="utf-8").replace('"2 us"', '"2"')
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"(?s)kernels\.gemm\.compute.*shortest"):
        load_efficiency(tmp_path / "mine.yaml")


def write() -> None:
    """The files, with comments and quotes as they were."""
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 4096, True
    for path in sorted(data_folder("topologies").glob("efficiency/*.yaml")):
        page = yaml.load(path)
        for key, given in quantities(page).items():
            given["value"] = DoubleQuotedScalarString(taken_over(given["source"], key) or given["value"])
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            yaml.dump(page, stream)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    write()
