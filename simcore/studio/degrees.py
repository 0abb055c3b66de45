"""Values of each degree of parallelism that a job may have, and for the others why not.

The number of GPUs stays when a degree changes: the data-parallel axis takes what is left. Each value is asked of the
framework's rules (`simcore.simulate.check`); the job's own mesh, and one in its place, also for operators that a step
would lack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import log, prod
from typing import Any, Final

from simcore.errors import InputError, Problem, RankscopeError
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.frameworks.setup import prepare
from simcore.inputs.document import Document
from simcore.inputs.loading import entry_of
from simcore.inputs.scenario import Mesh
from simcore.lint.all_problems import stage_keys, without
from simcore.results.report import ProblemRow
from simcore.search.meshes import DEGREES
from simcore.simulate import check
from simcore.studio.others import answering
from simcore.units import format_bytes

__all__ = ["degrees"]

_STEPPED: Final = ("tp", "pp", "cp", "ep", "etp", "dp_replicate")
_RESTS: Final = ("dp_shard", "dp_replicate")
"""Axes that may take what is left, the first that the framework accepts."""
_GPUS: Final = tuple(2**power for power in range(15))
_FAR: Final = 32
"""Largest factor between the numbers of GPUs that are tried and that of the job."""
_BATCH: Final = "global_batch_size"
_MICRO: Final = "micro_batch_size"
_MOST: Final = 16
"""Values of a degree that are tried."""

_PLAINS: Final = 3
"""Legal layouts that a refused job is offered."""
_OF_EXPERTS: Final = ("ep", "etp")

_Mesh = Mapping[str, int | None]


def degrees(document: Document) -> dict[str, Any]:
    """Values of the number of GPUs and of each axis, as JSON has them: the mesh that each gives, and why it is refused.

    `why`: "" for a legal one. `plain`: where the job's own mesh is refused, a legal one: with fewer ranks for experts,
    else without one other degree, else with data parallelism alone; of as many GPUs, where that takes a larger batch of
    a step with this in `also`, or of the next numbers of GPUs, with `fixed`, why none has the job's; None without any.
    `drops`: keys that it leaves out; `others`: at most two further ones, each with these four. `idle`:
    axes of experts, of a model that has none. `frameworks`: where no layout is legal, keys that give the job to others.
    One stage has `drops` too, where the keys of a pipeline stand in its way; a number of GPUs that the batch of a step
    or the experts' degree cannot have has `also`: keys and the next values that it can. InputError for a mesh that no
    job may have.
    """
    mesh = _mesh(document)
    gpus = _gpus_of(mesh)
    tried = {"gpus": [_of_gpus(document, n, mesh) for n in _numbers(gpus)]}
    for axis in _STEPPED:
        values = _values(document, axis, mesh, gpus)
        tried[axis] = [_tried(document, n, _with_degree(mesh, axis, n, gpus)) for n in values]
    if tried["pp"][0]["why"]:
        tried["pp"][0] = next((one for one in _one_stage(document, _with_degree(mesh, "pp", 1, gpus))), tried["pp"][0])
    is_refused = bool(_why(document, mesh, whole=True))
    plains = list(islice(_plain(document, gpus), _PLAINS)) if is_refused else []
    first: Mapping[str, Any] = plains[0] if plains else {"plain": None, "drops": [], "also": {}, "fixed": ""}
    says = {name: field.description for name, field in Mesh.model_fields.items()}
    says["gpus"] = "Number of ranks of the job"
    return {"gpus": gpus, "mesh": mesh, "values": tried, **first, "says": says, "others": plains[1:],
            "idle": _idle(document),
            "frameworks": _frameworks(document) if is_refused and not plains else []}


def _of_gpus(document: Document, number: int, mesh: _Mesh) -> dict[str, Any]:
    """A number of GPUs, with a larger batch where the job's is no multiple of its data-parallel ranks.

    Else with fewer ranks that share the experts, where so few GPUs cannot have the job's.
    """
    tried = _tried(document, number, _with_gpus(mesh, number))
    if not tried["why"] or not tried["mesh"]:
        return tried
    for one in _with_gpus(mesh, number):
        also = _larger(document, one)
        if also and not _why(_with_training(document, also), one):
            return {"value": number, "mesh": dict(one), "why": "", "also": also}
    for one in chain.from_iterable(map(_fewer_experts, _with_gpus(mesh, number))):
        if not _why(document, one):
            fewer = {f"mesh.{axis}": one[axis] for axis in _OF_EXPERTS if one[axis] != mesh[axis]}
            return {"value": number, "mesh": dict(one), "why": "", "also": fewer}
    return tried


def _larger(document: Document, mesh: _Mesh) -> dict[str, int]:
    """The key and the next batch of a step that all data-parallel ranks share evenly; {} where the job's own is one."""
    training = document.data.get("training")
    batch, micro = (training.get(key) for key in (_BATCH, _MICRO)) if isinstance(training, dict) else (None, None)
    if not isinstance(batch, int) or not isinstance(micro or 1, int):
        return {}
    unit = prod(mesh[axis] or 1 for axis in _RESTS) * (micro or 1)
    return {f"training.{_BATCH}": -(-batch // unit) * unit} if batch % unit else {}


def _with_training(document: Document, keys: Mapping[str, int]) -> Document:
    training = {**document.data["training"], **{key.partition(".")[2]: value for key, value in keys.items()}}
    return document.with_value(("training",), training, "training")


def _plain(document: Document, gpus: int) -> Iterator[dict[str, Any]]:
    """Legal layouts of as many GPUs as the job has, the nearest to its own first, of each kind one.

    Without any: of the next numbers of GPUs, and of as many with a larger batch of a step.
    """
    own, told = _mesh(document), list[_Mesh]()
    ones: _Mesh = Mesh().model_dump()
    alone = [*_with_gpus(ones, gpus)]
    kinds = [_fewer_experts(own),
             *([*_with_degree(own, axis, 1, gpus)] for axis in ("pp", "tp", "cp") if own[axis] != 1)]
    for kind in (*kinds, alone):
        for mesh in kind:
            if mesh not in told and (drops := _drops(document, mesh, whole=True)) is not None:
                told.append(mesh)
                yield _offer(mesh, drops)
                break
    if told:
        return
    fixed = _fixed(document, gpus, alone)
    other = [_offer(*one, fixed=fixed) for one in _of_next_numbers(document, gpus)]
    larger = islice(_with_larger(document, (own, *chain.from_iterable(kinds), *alone)), 1)
    yield from (*other[:1], *larger, *other[1:])  # a larger batch trains another way, other GPUs do not


def _of_next_numbers(document: Document, gpus: int) -> list[tuple[_Mesh, list[str]]]:
    """First legal mesh on fewer and on more GPUs, the nearer number first, each with the keys that it leaves out."""
    own, ones, found = _mesh(document), Mesh().model_dump(), list[tuple[_Mesh, list[str]]]()
    numbers = sorted({*_numbers(gpus), 1} - {gpus}, key=lambda number: abs(log(number / gpus)))
    for number in numbers:
        if found and (number < gpus) == (_gpus_of(found[0][0]) < gpus):
            continue
        meshes = (*_with_gpus(own, number), *_with_gpus(ones, number))
        legal = ((mesh, drops) for mesh in meshes if (drops := _drops(document, mesh, whole=True)) is not None)
        found += islice(legal, 1)
        if len(found) > 1:
            break
    return found


def _with_larger(document: Document, meshes: Iterable[_Mesh]) -> Iterator[dict[str, Any]]:
    """Meshes that are legal with the next batch of a step that their ranks can share, in the order given."""
    for mesh in meshes:
        also = _larger(document, mesh)
        if also and (drops := _drops(_with_training(document, also), mesh, whole=True)) is not None:
            yield _offer(mesh, drops, also)


def _gpus_of(mesh: _Mesh) -> int:
    return prod(mesh[axis] or 1 for axis in DEGREES)


def _offer(mesh: _Mesh, drops: list[str], also: Mapping[str, int] | None = None, fixed: str = "") -> dict[str, Any]:
    return {"plain": dict(mesh), "drops": drops, "also": dict(also or {}), "fixed": fixed}


def _fewer_experts(mesh: _Mesh) -> list[_Mesh]:
    """Meshes with fewer ranks that share the experts, the most first, at last with none that does."""
    ranks = mesh["ep"] or 1
    fewer = [{**mesh, "ep": n} for n in reversed(_divisors(ranks)) if n < ranks]
    return [one for one in (*fewer, {**mesh, "ep": 1, "etp": None}) if one != mesh]


def _fixed(document: Document, gpus: int, alone: Sequence[_Mesh]) -> str:
    """Reason why no layout has the job's number of GPUs: that of data parallelism alone; "" without one to ask."""
    if not alone:
        return ""
    if _larger(document, alone[0]):
        return f"{gpus} GPUs cannot share a global batch of {document.data['training'][_BATCH]} evenly"
    return _why(document, alone[0], whole=True)


def _frameworks(document: Document) -> list[dict[str, Any]]:
    """Other frameworks that answer a job for which its own has no layout: keys, and what of the memory they need."""
    scenario = entry_of(document).scenario
    rows = () if scenario is None else answering(scenario)
    return [{"keys": keys, "says": f"{format_bytes(one.highest_bytes or 0)} of {format_bytes(one.capacity_bytes)}"}
            for keys, one in rows if one.capacity_bytes]


def _idle(document: Document) -> list[str]:
    """Axes of experts, of a model that is known to have none; [] where the job is refused for another reason."""
    entry = entry_of(without(document.with_value(("mesh",), {}, "mesh"), "training.pipeline"))
    try:
        return [] if entry.scenario is None or prepare(entry.scenario)[0].has_experts else [*_OF_EXPERTS]
    except RankscopeError:
        return []


def _one_stage(document: Document, meshes: Iterator[_Mesh]) -> Iterator[dict[str, Any]]:
    """Values of the axis of stages that are legal without keys of a pipeline."""
    for mesh in meshes:
        if drops := _drops(document, mesh):
            yield {"value": 1, "mesh": dict(mesh), "why": "", "drops": drops}


def _drops(document: Document, mesh: _Mesh, *, whole: bool = False) -> list[str] | None:
    """Keys of stages without which a mesh of one stage is legal; None if it is not without them either."""
    if not _why(document, mesh, whole=whole):
        return []
    dropped: list[str] = []
    for key in stage_keys(document):
        dropped.append(key)
        document = without(document, key)
        if not _why(document, mesh, whole=whole):
            return dropped
    return None


def _mesh(document: Document) -> dict[str, int | None]:
    given = document.data.get("mesh") or {}
    try:
        mesh = Mesh.model_validate(given)
    except ValueError:
        entry = entry_of(document)  # says which value is wrong
        raise InputError(entry.problems) from None
    return mesh.model_dump()


def _numbers(gpus: int) -> list[int]:
    near = {n for n in _GPUS if gpus / _FAR <= n <= gpus * _FAR}
    return sorted({*near, gpus})


def _values(document: Document, axis: str, mesh: _Mesh, gpus: int) -> list[int | None]:
    """Divisors of the number of GPUs; for expert tensor parallelism the framework's default (None) and others of tp."""
    if axis == "etp":
        usual = {_usual_etp(document, mesh)} - {mesh["etp"]}
        return [None, *(n for n in _divisors(max(mesh["tp"] or 1, mesh["etp"] or 1)) if n not in usual)]
    return [*_divisors(gpus)]


def _usual_etp(document: Document, mesh: _Mesh) -> int | None:
    """Degree that the framework gives expert tensor parallelism where it is left out; None of an unknown framework."""
    name = document.data.get("framework")
    own = Mesh.model_validate({**mesh, "etp": None})
    return framework_adapter(name).default_etp(own) if name in known_frameworks() else None


def _divisors(number: int) -> list[int]:
    found = [n for n in range(1, min(number, 1024) + 1) if number % n == 0]
    return found[:_MOST]


def _with_gpus(mesh: _Mesh, gpus: int) -> Iterator[_Mesh]:
    """Meshes of that number of GPUs in which only the data-parallel degree is another."""
    for rest in _RESTS:
        others = prod(mesh[axis] or 1 for axis in DEGREES if axis != rest)
        if gpus % others == 0:
            yield {**mesh, rest: gpus // others}


def _with_degree(mesh: _Mesh, axis: str, degree: int | None, gpus: int) -> Iterator[_Mesh]:
    """Meshes of the same number of GPUs in which an axis has another degree."""
    changed = {**mesh, axis: degree}
    if axis not in DEGREES:
        yield changed
        return
    yield from (one for one in _with_gpus(changed, gpus) if one[axis] == degree)


def _tried(document: Document, value: int | None, meshes: Iterator[_Mesh]) -> dict[str, Any]:
    """A value with the first mesh that is legal; else with the first mesh and why it is refused."""
    refused: dict[str, Any] | None = None
    for mesh in meshes:
        why = _why(document, mesh)
        if not why:
            return {"value": value, "mesh": dict(mesh), "why": ""}
        refused = refused or {"value": value, "mesh": dict(mesh), "why": why}
    return refused or {"value": value, "mesh": None, "why": "the number of GPUs is no multiple of the degrees' product"}


def _why(document: Document, mesh: _Mesh, *, whole: bool = False) -> str:
    """Reason why a job with this mesh is refused; "" if it is not. `whole`: a step's operators are asked for too."""
    entry = entry_of(document.with_value(("mesh",), dict(mesh), "mesh"))
    problems: Sequence[Problem | ProblemRow] = entry.problems
    if entry.scenario is not None:
        problems = check(entry.scenario, rules_only=not whole).problems
    return "; ".join(f"{p.message} [{p.rule}]" if p.rule else p.message for p in problems[:2])
