from __future__ import annotations

from pathlib import Path

import pytest

import simcore.data
from simcore.data import data_folder, example
from simcore.errors import InputError


@pytest.mark.parametrize("kind", ["topologies", "scenarios"])
def test_a_checkout_has_its_data_at_the_top(kind: simcore.data.Kind) -> None:
    assert data_folder(kind) == Path(simcore.data.__file__).parents[1] / kind
    assert list(data_folder(kind).iterdir())


def test_an_installed_package_has_its_data_inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = tmp_path / "simcore" / "_data" / "scenarios"
    inside.mkdir(parents=True)
    monkeypatch.setattr(simcore.data, "__file__", str(tmp_path / "simcore" / "data.py"))
    assert data_folder("scenarios") == inside
    (inside / "tiny.yaml").touch()
    assert example("tiny") == inside / "tiny.yaml"


def test_an_unknown_example_lists_those_that_are_there() -> None:
    with pytest.raises(InputError) as caught:
        example("no-such-example")
    for path in data_folder("scenarios").glob("[!.]*"):
        assert path.stem in str(caught.value)
