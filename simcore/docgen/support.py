"""Page of what each framework serves: every cell is asked of the framework's own table.

    python -m simcore.docgen.support > docs/support.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from simcore.docgen.asking import METHODS, asked, scenario_of
from simcore.docgen.glossary import table
from simcore.docgen.served import NAMES, served
from simcore.errors import RankscopeError
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.frameworks.setup import prepare

__all__ = ["defaults_of", "support"]

_HEAD: Final = """# What is supported

Made by `python -m simcore.docgen.support`: each cell is a small scenario that was put to the framework's table.
`yes`: answered for at least one of the models that were asked. `refused`: the framework itself refuses it for all of
them; `rankscope check` says by which rule. `not yet`: the framework may have it, this version does not model it.
Models: """
_MATRIX: Final = """Methods that run with the layers and the version that a framework takes by default, on data-parallel
ranks: small scenarios for each cell, by `python -m simcore.docgen.served`. Other layers may run more: see above."""
_MODELS: Final = ("llama-tiny", "nemotron-3-tiny", "mixtral-8x7b", "deepseek-v2-lite", "mpt-7b")
_MESHES: Final[dict[str, dict[str, int]]] = {
    "dp_replicate": {"dp_replicate": 2}, "dp_shard": {"dp_shard": 2}, "HSDP": {"dp_replicate": 2, "dp_shard": 2},
    "tp": {"tp": 2}, "cp": {"cp": 2}, "pp": {"pp": 2}, "ep": {"ep": 2},
}
_HOST: Final = {"offload": {"params": "host", "optimizer": "host", "gradients": "host"}}
_FEATURES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "lora": METHODS["lora"],
    "qlora": METHODS["qlora"],
    "fp8": ({"training": {"precision": {"compute": "fp8"}}},
            {"training": {"precision": {"compute": "fp8"}, "recompute": "full"},
             "framework_options": {"compile": True}},
            {"training": {"precision": {"compute": "fp8"}}, "framework_options": {"fp8_all_gather": True}},
            {"training": {"precision": {"compute": "fp8"}}, "topology": "dgx-b200",
             "framework_options": {"fp8_recipe": "mxfp8", "fp8_param_gather": True}}),
    "packed": ({"training": {"lengths": "packed"}},),
    "recompute": ({"training": {"recompute": "full"}},),
    "8-bit Adam": ({"training": {"optimizer": {"moments": "int8"}}},),
    "Muon": ({"training": {"optimizer": {"name": "muon"}}}, {"training": {"optimizer": {"name": "dist_muon"}}}),
    "virtual stages": ({"mesh": {"pp": 2}, "training": {"pipeline": {"virtual_stages": 2}}},),
    "zero bubble": ({"mesh": {"pp": 2}, "training": {"pipeline": {"schedule": "zb_h1"}}},),
    "params on host": ({"training": {"offload": {"params": "host"}}}, {"training": _HOST}),
    "states on host": ({"training": {"offload": {"optimizer": "host"}}}, {"training": _HOST}),
    "activations on host": ({"training": {"offload": {"activations": "host"}, "recompute": "full"}},
                            {"training": {"offload": {"activations": "host"}},
                             "framework_options": {"cpu_offloading_num_layers": 1}}),
}
"""Features that each framework is tried with: the ways to ask for a feature; one that is served is enough."""
_DATA: Final[tuple[dict[str, int], ...]] = ({"dp_shard": 2}, {"dp_replicate": 2})
_OPTION: Final = "framework_options."


def support() -> str:
    """Markdown text of `docs/support.md`: tables of what each framework serves, with each layer implementation.

    A cell is `yes` (for at least one of a few models), `not yet`, `refused` or `-` (none of the models can be asked).
    """
    rows = [(framework, implementation) for framework in known_frameworks()
            for implementation in framework_adapter(framework).implementations]
    axes = table(("framework", "layers", *_MESHES), [(f"`{f}`", f"`{i}`", *_meshes(f, i)) for f, i in rows])
    rest = table(("framework", "layers", *_FEATURES), [(f"`{f}`", f"`{i}`", *_features(f, i)) for f, i in rows])
    models = ", ".join(f"`{name}`" for name in _MODELS)
    return (f"{_HEAD}{models}.\n\n## Parallelism\n\n{axes}\n\n## Methods, formats, memory\n\n{rest}\n\n## Models\n\n"
            f"{_MATRIX}\n\n{_matrix()}\n")


def _matrix() -> str:
    """Table of models by frameworks; each cell has the methods that run."""
    return table(("model", *(f"`{name}`" for name in known_frameworks())), (
        (f"`{model}`", *(", ".join(NAMES[method] for method in methods) or "not yet"
                         for methods in entry["methods"].values())) for model, entry in served().items()))


def _meshes(framework: str, implementation: str) -> Iterator[str]:
    for mesh in _MESHES.values():
        is_data = mesh.keys() <= {"dp_replicate", "dp_shard"}
        shapes = [mesh] if is_data else [mesh | {"dp_shard": 2}, mesh | {"dp_replicate": 2}, mesh]
        yield _answer(framework, implementation, [{"mesh": shape} for shape in shapes])


def _features(framework: str, implementation: str) -> Iterator[str]:
    for ways in _FEATURES.values():
        yield _answer(framework, implementation, [way | {"mesh": way.get("mesh", {}) | data} for way in ways
                                                  for data in ({"dp_shard": 2}, {"dp_replicate": 2})])


def _answer(framework: str, implementation: str, ways: list[dict[str, Any]]) -> str:
    """The best answer over ways to ask and models: yes, then not yet, then refused."""
    words = {"-"}
    for way in ways:
        for model in _runnable(framework, implementation):
            words.add(word := asked({**_named(framework, implementation), "model": model, **way}))
            if word == "yes":
                return word
    return next(word for word in ("not yet", "refused", "-") if word in words)


@lru_cache
def _runnable(framework: str, implementation: str) -> tuple[str, ...]:
    """The models that are answered without any feature: what others lack is not the feature's."""
    return _models(_named(framework, implementation))


@lru_cache
def _named(framework: str, implementation: str) -> dict[str, Any]:
    """Keys of the framework and its layers, in the first version of the framework that runs them."""
    versions = ({"framework": framework, "implementation": implementation, "framework_version": version}
                for version in framework_adapter(framework).versions)
    return next((keys for keys in versions if _models(keys)), {"framework": framework,
                                                               "implementation": implementation})


def _models(base: dict[str, Any]) -> tuple[str, ...]:
    return tuple(model for model in _MODELS if any(asked({**base, "model": model, "mesh": mesh}) == "yes"
                                                   for mesh in ({"dp_shard": 2}, {"dp_replicate": 2})))


def defaults_of(framework: str) -> dict[str, str]:
    """Values of `framework_options` that a framework's table takes where a scenario leaves them out, by name.

    Over the layers that it runs and a few small models; values that differ by model or layers are joined by `|`.
    """
    found: dict[str, dict[str, None]] = {}
    for implementation in framework_adapter(framework).implementations:
        named = _named(framework, implementation)
        for keys in ({**named, "model": model, "mesh": mesh} for model in _MODELS for mesh in _DATA):
            try:
                _, table_of = prepare(scenario_of(keys))
            except RankscopeError:
                continue
            for key, value, _ in table_of.defaults:
                if key.startswith(_OPTION):
                    found.setdefault(key.removeprefix(_OPTION), {})[value] = None
    return {name: "|".join(values) for name, values in found.items()}


if __name__ == "__main__":
    sys.stdout.write(support())
