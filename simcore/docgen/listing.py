"""Lists of what is there: models, machines, frameworks, options of a framework, examples; one record an entry."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from simcore.docgen.served import NAMES, served, those_with
from simcore.docgen.support import defaults_of
from simcore.frameworks.registry import framework_adapter, known_frameworks, named_adapter
from simcore.hardware.topology import load_topology, topology_names
from simcore.inputs.document import read_text
from simcore.inputs.shipped import data_folder
from simcore.models.graph import known_presets, model_config
from simcore.models.names import ids_of, names_of
from simcore.units import GIB

__all__ = ["Record", "examples", "frameworks", "machines", "models", "option_lines", "options"]

Record = dict[str, Any]
"""One entry of a list: field -> text, number, list, or a mapping of these."""
_TYPES: Final = {int: "integer", float: "number", str: "text", list: "list", dict: "mapping"}
_QUESTION: Final = "**Question.** "


def models() -> list[Record]:
    """Built-in models by name: family, parameters, layers, repository, other names, and the methods that run.

    `methods`: framework -> methods whose step is simulated, with the framework's default layers and version. `answers`:
    framework -> method -> the engine's answer (`asking.ANSWERS`), such as "placement only"; `with`: what a step takes
    besides data parallel ranks (`served.served`). A model that was added since answers were stored is not in it.
    """
    return [_model(name) for name in known_presets() if name in served()]


def _model(name: str) -> Record:
    told = served()[name]
    return {"name": name, "family": model_config(name, None, name)["model_type"], "parameters": told["parameters"],
            "layers": told["layers"], "repository": next(iter(ids_of(name)), None),
            "other_names": list(names_of(name)[2:]), "methods": those_with("yes", told), "answers": told["answers"],
            "with": told["with"]}


def machines() -> list[Record]:
    """Built-in machines by name: GPU, usable GiB of one GPU, GPUs of a node, price of a GPU-hour in USD or None."""
    found = []
    for name in topology_names():
        machine = load_topology(name)
        price = machine.price_per_gpu_hour
        usable = round(machine.device.usable_bytes / GIB, 2)
        found.append({"name": name, "gpu": machine.device.name, "usable_gib": usable,
                      "gpus_per_node": int(machine.node.gpus),
                      "usd_per_gpu_hour": None if price is None else price.si})
    return found


def frameworks() -> list[Record]:
    """Frameworks by name: versions and layers (the default first), methods, models whose full training runs."""
    return [_framework(name) for name in known_frameworks()]


def _framework(name: str) -> Record:
    adapter = framework_adapter(name)
    told = [entry["answers"][name] for entry in served().values() if name in entry["answers"]]  # [] of a new one
    return {"name": name, "versions": list(adapter.versions), "layers": list(adapter.implementations),
            "methods": [method for method in NAMES if any(words[method] == "yes" for words in told)],
            "models": sum(words["full"] == "yes" for words in told)}


def options(framework: str) -> list[Record]:
    """Keys of `framework_options` of a framework: values, default, layers that take it, and what it says.

    `default`: what the framework's table takes for a small dense and a small MoE model, None where it names none: the
    option is then off or its effect depends on the job. InputError for an unknown framework.
    """
    adapter = named_adapter(framework)
    chosen = defaults_of(framework)
    layers: dict[str, list[str]] = {}
    values: dict[str, dict[str, None]] = {}
    for implementation in adapter.implementations:
        for name, allowed in adapter.options(implementation).items():
            layers.setdefault(name, []).append(implementation)
            values.setdefault(name, {}).update(dict.fromkeys(map(_spelled, allowed)))
    return [{"name": name, "values": list(values[name]), "default": chosen.get(name), "layers": layers[name],
             "says": option_lines()[name]} for name in sorted(layers)]


def _spelled(allowed: Any) -> str:
    """A value of an option as YAML has it, or the word for a type."""
    if isinstance(allowed, type):
        return _TYPES[allowed]
    return "null" if allowed is None else str(allowed).lower() if isinstance(allowed, bool) else str(allowed)


@lru_cache(maxsize=1)
def option_lines() -> Mapping[str, str]:
    """One line on each key of `framework_options`, by its name."""
    file = resources.files("simcore.frameworks").joinpath("options.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def examples() -> list[Record]:
    """Shipped examples by name: title, question, and the files of scenarios."""
    return list(_examples(data_folder("scenarios")))


def _examples(folder: Path) -> Iterator[Record]:
    for page in sorted(folder.glob("*/README.md")):
        title, _, rest = read_text(page).partition("\n")
        _, _, question = rest.partition(_QUESTION)
        yield {"name": page.parent.name, "title": title.removeprefix("# "),
               "question": " ".join(question.partition("\n\n")[0].split()),
               "files": [file.name for file in sorted(page.parent.glob("*.yaml"))]}
