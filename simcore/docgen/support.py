"""Page of what each framework serves: every cell is asked of the engine, which writes out a step.

    python -m simcore.docgen.support > docs/support.md
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from simcore.docgen.asking import ANSWERS, METHODS, PLACED, asked, best, scenario_of
from simcore.docgen.glossary import table
from simcore.docgen.served import in_words, served, those_with
from simcore.errors import RankscopeError
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.frameworks.setup import prepare

__all__ = ["defaults_of", "support"]

_HEAD: Final = """# What is supported

Made by `python -m simcore.docgen.support`: each cell is a small scenario whose step was written out.
`yes`: simulated for at least one of the models that were asked. `placement only`: `rankscope place` answers, `run` and
`check` say which operators are missing. `refused`: the framework itself refuses it for all of them; `rankscope check`
says by which rule. `not yet`: the framework may have it, this version does not model it. Models, the large ones with
fewer layers: """
_MATRIX: Final = """Methods whose step is simulated with the layers and the version that a framework takes by default,
on data-parallel ranks: small scenarios for each cell, by `python -m simcore.docgen.served`. Other layers may run more:
see above. `with ep`, `with attn_implementation: eager`: what a step takes besides, where it does not run without.
In a cell without a method: `placement only`, `refused` or `not yet`, the best answer of its methods."""
_LAYERS: Final = 8
_MODELS: Final[dict[str, str | dict[str, Any]]] = {
    "llama-tiny": "llama-tiny", "nemotron-3-tiny": "nemotron-3-tiny",
    **{name: {"config": name, "overrides": {field: _LAYERS}} for name, field in (
        ("mixtral-8x7b", "num_hidden_layers"), ("deepseek-v2-lite", "num_hidden_layers"), ("mpt-7b", "n_layers"))}}
"""Models that each cell is asked of, by name: the large ones with few layers, which have all kinds of layers."""
_MESHES: Final[dict[str, dict[str, int]]] = {
    "dp_replicate": {"dp_replicate": 2}, "dp_shard": {"dp_shard": 2}, "HSDP": {"dp_replicate": 2, "dp_shard": 2},
    "tp": {"tp": 2}, "cp": {"cp": 2}, "pp": {"pp": 2}, "ep": {"ep": 2},
}
_ASKED: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "cp": ({}, {"framework_options": {"attn_implementation": "flash_attention_2"}}),  # verl's exchanges around it
    "pp": ({}, {"framework_options": {"deallocate_pipeline_outputs": False}}),
}
"""Other keys that an axis is tried with, where some frameworks serve it with them alone."""
_HOST: Final = {"offload": {"params": "host", "optimizer": "host", "gradients": "host"}}
_FEATURES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "lora": (*METHODS["lora"], *(way | {"framework_version": "main 2026-08-22"} for way in METHODS["lora"])),
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
    "Adafactor": ({"training": {"optimizer": {"name": "adafactor"}}},),
    "Lion": ({"training": {"optimizer": {"name": "lion"}}},),
    "RMSprop": ({"training": {"optimizer": {"name": "rmsprop"}}},),
    "Muon": ({"training": {"optimizer": {"name": "muon"}}}, {"training": {"optimizer": {"name": "dist_muon"}}}),
    "GaLore": ({"training": {"optimizer": {"name": "galore"}}},),
    "APOLLO": ({"training": {"optimizer": {"name": "apollo"}}},),
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

    A cell is the best answer (`asking.ANSWERS`) of a few models.
    """
    rows = [(framework, implementation) for framework in known_frameworks()
            for implementation in framework_adapter(framework).implementations]
    axes, rest = ([(f"`{f}`", f"`{i}`", *answers(f, i)) for f, i in rows] for answers in (_meshes, _features))
    every, models = Counter(word for row in (*axes, *rest) for word in row[2:]), ", ".join(f"`{x}`" for x in _MODELS)
    return (f"{_HEAD}{models}.\n\nOf {every.total():,} cells of the first two tables: {_shares(every)}.\n\n"
            f"## Parallelism\n\n{table(('framework', 'layers', *_MESHES), axes)}\n\n## Methods, formats, memory\n\n"
            f"{table(('framework', 'layers', *_FEATURES), rest)}\n\n## Models\n\n{_MATRIX}\n\n{_matrix()}\n")


def _matrix() -> str:
    """Line that counts the cells of each answer, and a table of models by frameworks with the methods that run."""
    every = Counter(word for entry in served().values() for words in entry["answers"].values()
                    for word in words.values())
    rows = ((f"`{model}`", *(in_words(run, entry["with"].get(framework, {}))
                             or best(entry["answers"][framework].values())
                             for framework, run in those_with("yes", entry).items()))
            for model, entry in served().items())
    return (f"Of {every.total():,} cells, one for each model, framework and method: {_shares(every)}.\n\n"
            + table(("model", *(f"`{name}`" for name in known_frameworks())), rows))


def _shares(every: Counter[str]) -> str:
    """Number of cells of each answer, with its share."""
    return ", ".join(f"{word} {every[word]:,} ({every[word] / every.total():.1%})" for word in ANSWERS if every[word])


def _meshes(framework: str, implementation: str) -> Iterator[str]:
    for axis, mesh in _MESHES.items():
        is_data = mesh.keys() <= {"dp_replicate", "dp_shard"}
        shapes = [mesh] if is_data else [mesh | {"dp_shard": 2}, mesh | {"dp_replicate": 2}, mesh]
        yield _answer(framework, implementation, [{"mesh": shape, **way} for way in _ASKED.get(axis, ({},))
                                                  for shape in shapes])


def _features(framework: str, implementation: str) -> Iterator[str]:
    for ways in _FEATURES.values():
        yield _answer(framework, implementation, [way | {"mesh": way.get("mesh", {}) | data} for way in ways
                                                  for data in ({"dp_shard": 2}, {"dp_replicate": 2})])


def _answer(framework: str, implementation: str, ways: list[dict[str, Any]]) -> str:
    """The best answer over ways to ask and models; "not yet" of layers that run no model under the framework."""
    named = _named(framework, implementation)
    if not _runnable(framework, implementation):
        return "not yet"
    return best(asked({**named, "model": _MODELS[name], **way}) for way in ways
                for name in _runnable(framework, implementation))


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
    """The models with the best answer, of those that are answered."""
    answers = {name: best(asked({**base, "model": model, "mesh": mesh}) for mesh in _DATA)
               for name, model in _MODELS.items()}
    most = best(answers.values())
    return tuple(name for name, answer in answers.items() if answer == most and answer in ("yes", PLACED))


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
