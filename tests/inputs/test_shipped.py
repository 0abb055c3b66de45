from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import simcore.inputs.shipped
from checkout import ROOT
from simcore.errors import InputError
from simcore.inputs.shipped import data_folder, example, find_file

KINDS: dict[simcore.inputs.shipped.Kind, str] = {
    "topologies": "topologies", "scenarios": "scenarios", "measured": "tests/truth/measured"}


@pytest.mark.parametrize(("kind", "place"), KINDS.items())
def test_a_checkout_has_its_data_where_people_edit_it(kind: simcore.inputs.shipped.Kind, place: str) -> None:
    assert data_folder(kind) == ROOT / place
    assert list(data_folder(kind).iterdir())


@pytest.mark.parametrize(("kind", "place"), KINDS.items())
def test_an_installed_package_takes_that_data_along(kind: str, place: str) -> None:
    """A wheel has each folder once, where `data_folder` looks in an installed package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert place in wheel["only-include"]
    assert wheel["sources"][place] == f"simcore/_data/{kind}"


def test_an_installed_package_has_its_data_inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = tmp_path / "simcore" / "_data" / "scenarios"
    inside.mkdir(parents=True)
    monkeypatch.setattr(simcore.inputs.shipped, "__file__", str(tmp_path / "simcore" / "inputs" / "shipped.py"))
    assert data_folder("scenarios") == inside
    (inside / "tiny.yaml").touch()
    assert example("tiny") == inside / "tiny.yaml"


def test_an_unknown_example_lists_those_that_are_there() -> None:
    with pytest.raises(InputError) as caught:
        example("no-such-example")
    for path in data_folder("scenarios").glob("[!.]*"):
        assert path.stem in str(caught.value)


def test_a_name_in_capitals_is_near_one_that_is_there() -> None:
    with pytest.raises(InputError, match=r"no topology 'H100'; did you mean dgx-h100\?"):
        find_file("topology", "H100", {"dgx-h100": ROOT, "dgx-b200": ROOT}, "mine.yaml:4")
