"""The schema for editors offers the names that rankscope knows, and takes no other option of a framework."""

from __future__ import annotations

from typing import Any

from simcore.docgen.editor_schema import editor_schema
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.hardware.topology import topology_names
from simcore.inputs.scenario import scenario_schema
from simcore.models.graph import known_presets

SCHEMA = editor_schema()


def offered(key: str) -> list[str]:
    [first, text] = SCHEMA["properties"][key]["oneOf"][0]["anyOf"]
    assert text["type"] == "string", "a path is taken too"
    return list(first["enum"])


def rule(framework: str) -> dict[str, Any]:
    [found] = [one for one in SCHEMA["allOf"] if one["if"]["properties"]["framework"] == {"const": framework}]
    options: dict[str, Any] = found["then"]["properties"]["framework_options"]
    return options


def test_names_are_choices() -> None:
    assert SCHEMA["properties"]["framework"]["enum"] == list(known_frameworks())
    assert "auto" in SCHEMA["properties"]["implementation"]["enum"]
    assert set(known_presets()) < set(offered("model"))
    assert "Qwen/Qwen3-8B" in offered("model")
    assert offered("topology") == list(topology_names())


def test_each_framework_takes_its_own_options_alone() -> None:
    for framework in known_frameworks():
        adapter, options = framework_adapter(framework), rule(framework)
        assert set(options["properties"]) == {name for one in adapter.implementations for name in adapter.options(one)}
        assert options["additionalProperties"] is False


def test_values_are_literals_and_types() -> None:
    assert rule("automodel")["properties"]["dispatcher"]["anyOf"] == [{"enum": ["deepep", "hybridep", "torch"]}]
    assert rule("ddp")["properties"]["bucket_cap_mb"]["anyOf"] == [{"enum": [None]}, {"type": "integer"}]
    assert rule("zero3")["properties"]["offload_param"]["anyOf"] == [{"type": "object"}]


def test_the_keys_are_those_of_a_scenario_and_stay_as_they_are() -> None:
    plain = scenario_schema()
    assert list(SCHEMA["properties"]) == list(plain["properties"])
    assert {key for key in plain["properties"] if SCHEMA["properties"][key] != plain["properties"][key]} == {
        "model", "framework", "implementation", "topology"}
    assert {key: SCHEMA[key] for key in plain if key != "properties"} == {
        key: value for key, value in plain.items() if key != "properties"}
