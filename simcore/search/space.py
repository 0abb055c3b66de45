"""The space of a search: a scenario, keys that are free, and every combination of their values as a candidate.

[Note: what stays]
The global batch stays: where the scenario gives one, layouts that do not divide it are refused; where it gives none,
each layout has one microbatch, as without a search. What the scenario says of its pipeline, and framework
options of stages, are not set for layouts without stages, where the number of stages is free. Numerics stay too, unless
`ALLOWED` says otherwise. Options of the scenario's framework, its version and its layers are not set for other
frameworks, which have their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from simcore.errors import InputError, Problem, RankscopeError
from simcore.frameworks.registry import asked_adapter, framework_adapter, known_frameworks
from simcore.frameworks.setup import configuration
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Mesh, Scenario
from simcore.inputs.sweep import split_key
from simcore.inputs.training import Pipeline
from simcore.models.blocks import Moe
from simcore.models.graph import layer_kinds
from simcore.placement.job import topology_of
from simcore.search.condition import RESULTS, Condition
from simcore.search.judge import Candidate
from simcore.search.leaner import alone
from simcore.search.meshes import DEGREES, meshes

__all__ = ["ALLOWED", "FREE", "Space", "candidates", "other_framework", "place_of", "place_of_space", "space_of"]

FREE: Final = ("mesh", "training.micro_batch_size", "training.recompute", "options")
"""Keys that are free by default; `mesh` stands for all its degrees, `options` for the framework's memory options."""
_MESH: Final = (*DEGREES, "ep", "etp")
_MICRO_BATCHES: Final = (1, 2, 4, 8)
_RECOMPUTE: Final = ("none", "full")
ALLOWED: Final[Mapping[str, tuple[str, Any]]] = {
    "bf16-params": ("training.precision.params", "bf16"),
    "bf16-grads": ("training.precision.grad_reduce", "bf16"),
    "bf16-moments": ("training.optimizer.moments", "bf16"),
}
"""Changes of numerics that `--allow` adds, by name: a key with the value that is tried beside the scenario's."""


@dataclass(frozen=True, slots=True)
class Space:
    """The candidates of a search.

    `gpus`, `frameworks`, `topologies`: tried each; `degrees`: free axes of the mesh; `axes`: other free keys with their
    values; `conditions`: what a candidate's keys must satisfy; `options`: memory options of frameworks are free;
    `leaner`: further keys to try by framework, each alone (`simcore.search.leaner`); {} where they are not free.
    """

    base: Scenario
    gpus: tuple[int, ...]
    frameworks: tuple[str, ...]
    topologies: tuple[str, ...]
    degrees: tuple[str, ...]
    axes: Mapping[str, tuple[Any, ...]]
    given: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    options: bool = True
    conditions: tuple[Condition, ...] = ()
    leaner: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)


def space_of(base: Scenario, *, gpus: Sequence[int] = (), frameworks: Sequence[str] = (),
             topologies: Sequence[str] = (), free: Mapping[str, tuple[Any, ...]] | None = None,
             allow: Sequence[str] = (), conditions: Sequence[Condition] = ()) -> Space:
    """Space around a scenario. Left out: its number of GPUs, its framework and topology, and `FREE`.

    `free`: keys with the values to try, () for the usual ones of a key in `FREE` or an axis of the mesh. InputError for
    a key that is not free by itself and has no values, and for keys that no scenario has.
    """
    asked = dict.fromkeys(FREE, ()) if free is None else dict(free)
    degrees = _degrees(base, asked)
    axes: dict[str, tuple[Any, ...]] = {}
    given: dict[str, tuple[Any, ...]] = {}
    for key, values in asked.items():
        if key in ("mesh", "options", "leaner"):
            continue
        if key.removeprefix("mesh.") in _MESH and key.startswith("mesh."):
            given |= {key.removeprefix("mesh."): values} if values else {}
        elif key == "training.micro_batch_size":
            axes[key] = values or _MICRO_BATCHES
        elif key == "training.recompute":
            axes[key] = values or _distinct((*_RECOMPUTE, _plain(base.training.recompute)))
        elif values:
            axes[key] = values
        else:
            raise InputError(_without_values(base, key))
    for name in allow:
        key, value = ALLOWED[name]
        axes[key] = _distinct((*axes.get(key, (_value(base, key),)), value))
    space = Space(base, tuple(gpus) or (base.world_size,), tuple(frameworks) or (base.framework,), tuple(topologies),
                  degrees, axes, given, "options" in asked, tuple(conditions))
    _check(space)
    if "leaner" not in asked:
        return space
    return replace(space, leaner={name: alone(base, other_framework(base, name)) for name in space.frameworks})


def _degrees(base: Scenario, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Free axes of the mesh. Those of experts are free in a model that has some, or where they are named themselves.

    No framework takes ep > 1 in a model without experts; a model that is not known is left to the candidates, which
    say so.
    """
    every = set(_MESH if "mesh" in asked else ())
    if every and base.mesh.ep == 1 and not any(key.startswith("model") for key in asked) and _is_dense(base):
        every = set(DEGREES)
    return tuple(axis for axis in _MESH if axis in every or f"mesh.{axis}" in asked)


def _is_dense(base: Scenario) -> bool:
    try:
        kinds = layer_kinds(configuration(base), base.where("model"))
    except RankscopeError:
        return False
    return not any(isinstance(branch.block, Moe) for kind in kinds for branch in kind.branches)


def _without_values(base: Scenario, key: str) -> Sequence[Problem]:
    """Problem of a free key that has neither values nor usual ones; that of the key itself if no scenario has it."""
    place = place_of(base, "free", key)
    try:
        changed(base, {key: None}, place)
    except InputError as error:
        if unknown := [problem for problem in error.problems if "unknown key" in problem.message]:
            return unknown
    usual = ", ".join((*FREE, "leaner", "mesh.<axis>"))
    return [Problem(place, f"expected values, such as {key}=1,2, or one of {usual}")]


def place_of(base: Scenario, option: str, value: str) -> str:
    """Place of a value for a message: the file's block `search` if it has the value there, or the option."""
    in_file = (base.search.model_dump()[option] if base.search else None) or ()
    return base.where("search", option) if value in in_file else f"--{option} {value[:100]}"


def place_of_space(base: Scenario) -> str:
    """Place of a whole space for a message: the file's block `search`, or the scenario's name."""
    return base.where("search") if base.search else base.name


def _distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    """Values without repetition, in order; they may be lists."""
    return tuple(value for index, value in enumerate(values) if value not in values[:index])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _value(base: Scenario, key: str, place: str = "") -> Any:
    """Value of a dotted key in a scenario, defaults filled in. InputError if there is no such key."""
    value: Any = base.normalised()
    for part in split_key(key):
        if not isinstance(value, Mapping) or part not in value:
            message = f"{key[:100]} is no key of a scenario, and none of {', '.join(RESULTS)}"
            raise InputError(Problem(place or key, message))
        value = value[part]
    return value


def _check(space: Space) -> None:
    """Raises InputError for keys and names that the scenario does not have, and for wrong values."""
    for framework, topology in itertools.product(space.frameworks, space.topologies or (None,)):
        head = _head(space.base, framework, topology, "")
        asked_adapter(changed(space.base, head, place_of(space.base, "framework", framework)))
        topology_of(changed(space.base, head, place_of(space.base, "topology", topology or "")))
    for key, values in space.axes.items():
        for value in values:
            try:
                changed(space.base, {key: value}, place_of(space.base, "free", key))
            except InputError as error:
                if any("multiple of" in problem.message for problem in error.problems):
                    continue  # the batch: a layout decides
                raise
    for one in space.conditions:
        for name in one.names:
            if name not in RESULTS:
                _value(space.base, name, one.place)


def candidates(space: Space) -> Iterator[Candidate]:
    """Every candidate of a space whose keys satisfy the conditions, in a fixed order."""
    deciding = [one for one in space.conditions if not one.needs_memory]
    names = dict.fromkeys(name for one in deciding for name in one.names)
    fixed = {name: _value(space.base, name) for name in names}
    for candidate in _all(space):
        values = {name: candidate.get(name, value) for name, value in fixed.items()}
        if all(one.holds(values) for one in deciding):
            yield candidate


def _all(space: Space) -> Iterator[Candidate]:
    for framework in space.frameworks:
        for topology in space.topologies or (None,):
            for num_gpus in space.gpus:
                for mesh in _meshes(space, framework, num_gpus):
                    nodes = _nodes(space, topology, num_gpus)
                    for values in itertools.product(*space.axes.values()):
                        free = dict(zip(space.axes, values, strict=True))
                        head = _head(space.base, framework, topology, free.get("training.method", ""))
                        keys = {**head, **nodes, **mesh, **free}
                        yield from ({**keys, **option} for option in _options(space, framework))


def other_framework(base: Scenario, name: str, method: str = "") -> dict[str, Any]:
    """Keys that choose a framework; the scenario's own keeps its version, options and layers.

    Another has the options that the training method (the scenario's, unless given) cannot do without.
    """
    needs = framework_adapter(name).needs if name in known_frameworks() else {}
    other = {"framework": name, "framework_version": "auto",
             "framework_options": dict(needs.get(method or base.training.method, {})), "implementation": "auto"}
    return {base.framework: {}}.get(name, other)


def _head(base: Scenario, framework: str, topology: str | None, method: str) -> dict[str, Any]:
    """Keys that choose framework and machine."""
    return ({} if topology is None else {"topology": topology}) | other_framework(base, framework, method)


def _nodes(space: Space, topology: str | None, num_gpus: int) -> dict[str, int]:
    """Number of nodes of the scenario's own topology, if it states one."""
    file = space.base.topology
    if topology is not None or isinstance(file, str) or file.num_nodes is None:
        return {}
    return {"topology.num_nodes": max(1, -(-num_gpus * file.num_nodes // space.base.world_size))}


def _meshes(space: Space, framework: str, num_gpus: int) -> Iterator[dict[str, Any]]:
    base = space.base.mesh
    for degrees in meshes(num_gpus, base, space.degrees, space.given):
        keys: dict[str, Any] = {f"mesh.{axis}": degree for axis, degree in degrees.items()}
        if degrees.get("pp") == 1 and space.base.training.pipeline != Pipeline():
            keys["training.pipeline"] = {}
        if degrees.get("pp") == 1:
            keys |= _without_stages(space.base, framework)
        yield from ({**keys, **width} for width in _widths(space, framework, base, degrees))


def _without_stages(base: Scenario, framework: str) -> dict[str, Any]:
    """The scenario's framework options without those of stages, where it says some for its own framework."""
    given = {base.framework: base.framework_options}.get(framework, {})
    of_stages = framework_adapter(framework).of_stages
    if not set(of_stages).intersection(given):
        return {}
    return {"framework_options": {name: value for name, value in given.items() if name not in of_stages}}


def _widths(space: Space, framework: str, base: Mesh, degrees: Mapping[str, int]) -> Iterator[dict[str, int | None]]:
    """Expert tensor parallelism: the framework's default, and 1 where the default is more."""
    if "etp" not in space.degrees:
        yield {}
        return
    if "etp" in space.given:
        yield from ({"mesh.etp": degree} for degree in space.given["etp"])
        return
    yield {"mesh.etp": None} if base.etp is not None else {}
    usual = framework_adapter(framework).default_etp(base.model_copy(update=dict(degrees)))
    if usual > 1 and degrees["ep"] > 1:
        yield {"mesh.etp": 1}


def _options(space: Space, framework: str) -> Iterator[dict[str, Any]]:
    """No memory option of the framework, then each alone; at last what `leaner` frees, each alone."""
    yield {}
    if space.options:
        yield from (dict(option.keys) for option in framework_adapter(framework).memory_options
                    if option.kind != "formats")
    yield from map(dict, space.leaner.get(framework, ()))
