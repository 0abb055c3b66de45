"""JSON Schema of scenario files for editors: the keys' own schema, with the names that are built in as choices."""

from __future__ import annotations

from typing import Any, Final

from simcore.docgen.listing import option_lines
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.hardware.topology import topology_names
from simcore.inputs.scenario import scenario_schema
from simcore.models.graph import known_presets
from simcore.models.names import names_of
from simcore.operators.registry import IMPLEMENTATIONS

__all__ = ["editor_schema"]

_TYPES: Final = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_PLAIN: Final = (str, int, float, bool, type(None))


def editor_schema() -> dict[str, Any]:
    """Schema (draft 2020-12) of a scenario file, in which names that rankscope knows are choices.

    A model or a machine may still be a path. `framework_options` takes the keys of the framework that the scenario
    names, with their values.
    """
    schema = scenario_schema()
    keys = {name: dict(value) for name, value in schema["properties"].items()}
    models = [name for preset in known_presets() for name in names_of(preset)]
    _offer(keys["model"], models)
    _offer(keys["topology"], list(topology_names()))
    keys["framework"]["enum"] = list(known_frameworks())
    keys["implementation"]["enum"] = ["auto", *IMPLEMENTATIONS]
    return {**schema, "properties": keys, "allOf": [*schema.get("allOf", ()), *map(_of_framework, known_frameworks())]}


def _offer(key: dict[str, Any], names: list[str]) -> None:
    """Offers names for a key that is any text, or a mapping."""
    text, mapping = key["oneOf"]
    key["oneOf"] = [{"anyOf": [{"enum": names}, text]}, mapping]


def _of_framework(framework: str) -> dict[str, Any]:
    """The rule that a scenario of one framework has that framework's options, with any of its layers."""
    adapter = framework_adapter(framework)
    allowed: dict[str, list[Any]] = {}
    for implementation in adapter.implementations:
        for name, values in adapter.options(implementation).items():
            allowed.setdefault(name, []).extend(values)
    options = {name: {"description": option_lines()[name], **_choice(values)} for name, values in sorted(
        allowed.items())}
    closed = {"type": "object", "properties": options, "additionalProperties": False}
    return {"if": {"properties": {"framework": {"const": framework}}, "required": ["framework"]},
            "then": {"properties": {"framework_options": closed}}}


def _choice(values: list[Any]) -> dict[str, Any]:
    """Schema of a value that is one of some literals, or of some types."""
    types = [_TYPES[value] for value in values if isinstance(value, type)]
    literals = list({repr(value): value for value in values if isinstance(value, _PLAIN)}.values())
    return {"anyOf": [*([{"enum": literals}] if literals else []), *({"type": name} for name in dict.fromkeys(types))]}
