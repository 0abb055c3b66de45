"""Files in and out: scenarios, recipes of other tools and models that are dropped; recipes and figures to take away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from simcore.errors import InputError, Problem, RankscopeError
from simcore.inputs.dump import yaml_text
from simcore.inputs.scenario import parse_scenario
from simcore.inputs.yaml_parser import dotted
from simcore.lint.all_problems import with_all_problems
from simcore.recipes.answers import Answers
from simcore.recipes.conversion.converting import convert
from simcore.recipes.conversion.writing import writable_formats
from simcore.recipes.imported import Imported, Left
from simcore.recipes.importing import import_files
from simcore.recipes.model_file import is_of_model, problems_of_model
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.registry import is_scenario
from simcore.recipes.text import left_line, missed, recipe_text, scenario_text
from simcore.results.report import ProblemRow, Report
from simcore.simulate import check
from simcore.studio.question import Question

__all__ = ["formats", "imported", "recipe", "scenario_file"]

_NO_FORMAT: Final = "is of no format that is recognised"
_SCRIPTS: Final = (".sh", ".slurm", ".sbatch")
_LOOSE: Final = r"[;,]? ?left out by --loose$"
_NOT_YET: Final = "not yet: "
_LIKELY: Final = ((8, 2048, "dgx-h100"), (4, 4096, "gb200-nvl72"), (64, 4096, "gb200-nvl72"), (256, 2048, "dgx-h100"),
                  (1024, 4096, "gb200-nvl72"))
"""GPUs, tokens of a sequence and machine that a recipe is tried with before these are known."""
_TOO: Final = "drop that file too"
"""Words of the page about a file that is not there; its script looks for them."""
_NAMED: Final = ("name that file beside the recipe", "name it beside the recipe", "name it too, by --with")
"""The same of the command line."""
_STAYS: Final = ", so --loose does not leave it out"
"""Words of a key without which the layout is another one."""
_LISTS: Final = re.compile(r": `rankscope models` lists .*?download its config.json \((.*?)\) and .*$")
"""Ways of the command line to a model that is not built in."""


def scenario_file(question: Question) -> dict[str, Any]:
    """The job as a scenario file."""
    return {"file": "scenario.yaml", "text": yaml_text(question.document().data)}


def imported(question: Question) -> dict[str, Any]:
    """Result of reading dropped files: the keys of a job, and for a recipe where they come from and what is left open.

    `kind`: "scenario", "recipe" or "model" (a config.json). InputError for files that are none of these.
    """
    files = tuple(RecipeFile(name, text) for name, text in question.files.items())
    if not files:
        raise InputError(Problem("files", "expected a file"))
    if len(files) == 1 and is_of_model(files[0]):
        return {"kind": "model", "values": {"model": files[0].path}}
    document = files[0].mapping()
    if document is not None and is_scenario(document):
        sweep = document.data.get("sweep")
        keys = document.without("sweep").without("search").data
        return {"kind": "scenario", "values": keys, "notes": ["its sweep is left out"] if sweep else []}
    try:
        return _of_recipe(files, question.rest)
    except InputError as error:
        raise InputError([replace(one, message=_of_page(one.message, files)) for one in error.problems]) from None


def _of_page(message: str, files: tuple[RecipeFile, ...]) -> str:
    """A message without options of the command line; a launch script alone is told what it lacks."""
    if message.startswith(_NO_FORMAT) and all(one.path.endswith(_SCRIPTS) for one in files):
        return ("a launch script is read together with the recipe that it starts (YAML, JSON or TOML): drop both at "
                "once; arguments of TRL's scripts can stand in a YAML file, as `trl sft --config` reads them")
    for words in _NAMED:
        message = message.replace(words, _TOO)
    message = message.replace(_STAYS, "")
    message = message.removeprefix(_NOT_YET) if _TOO in message else message
    return message.removesuffix(": --from says which it is")


def _of_recipe(files: tuple[RecipeFile, ...], rest: Mapping[str, Any]) -> dict[str, Any]:
    gpus, seq_len, topology = (rest.get(name) for name in ("gpus", "seq_len", "topology"))
    for name, value in (("gpus", gpus), ("seq_len", seq_len)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(Problem(name, "expected a whole number from 1 on"))
    answers = Answers.of_options(gpus, seq_len, str(topology or ""), _settings(rest))
    found = import_files(files, answers, str(rest.get("format") or ""), loose=True).with_settings(_settings(rest))
    problems = [replace(one, message=_of_page(one.message, files))
                for one in (*found.wrong, *found.refused, *_of_files(found.left), *_of_model(found))]
    made = {"kind": "recipe", "format": found.format, "values": found.values,
            "origins": {".".join(map(str, path)): str(origin) for path, origin in found.origins.items()},
            "names": _names(found), "left": [asdict(one) for one in found.left], **_left_out(found.left),
            "questions": [asdict(one) for one in found.questions], "problems": [asdict(one) for one in problems],
            "early": [] if problems or not found.questions else _early(files, rest)}
    return {**made, "text": "" if found.questions else scenario_text(found)}


def _settings(rest: Mapping[str, Any]) -> dict[str, Any]:
    """Answers by key of the job to what a recipe leaves open beside GPUs, length and machine."""
    given = rest.get("settings") or {}
    if not isinstance(given, dict) or not all(isinstance(value, str | int | float) for value in given.values()):
        raise InputError(Problem("settings", "expected a mapping of keys of the job to texts and numbers"))
    return {str(key): value for key, value in given.items()}


def _early(files: tuple[RecipeFile, ...], rest: Mapping[str, Any]) -> list[str]:
    """Reasons why a recipe has no answer whatever is said to its questions: those that two unlike machines share."""
    said: list[list[str]] = []
    for gpus, seq_len, topology in _LIKELY:
        answers = Answers.of_options(rest.get("gpus") or gpus, rest.get("seq_len") or seq_len,
                                     str(rest.get("topology") or topology), _settings(rest))
        try:
            found = import_files(files, answers, str(rest.get("format") or ""), loose=True)
            found = found.with_settings(_settings(rest))
            if not (found.wrong or found.questions):
                said.append([*dict.fromkeys(_keyed(one, found) for one in _problems(found)
                                            if one.message.startswith(_NOT_YET))])
        except InputError:  # degrees that these GPUs cannot have
            continue
        if len(said) > 1 or [] in said:
            break
    return [one for one in said[0] if one in said[1]] if len(said) > 1 else []


def _problems(found: Imported) -> Sequence[ProblemRow]:
    """All problems of the job that a recipe gives, each at a key of the job."""
    document = Question("recipe.yaml", None, found.values).document()
    problems = check(parse_scenario(document)).problems
    refused = Report(name="", scenario={}, status="error", problems=problems)
    return with_all_problems(document, refused).problems if problems else ()


def _keyed(problem: ProblemRow, found: Imported) -> str:
    """Message of a problem, behind the recipe's key that it is about."""
    names, key = _names(found), problem.where.split(" ")[0]
    named = names.get(key) or next((name for one, name in names.items() if one.startswith(f"{key}.")), "")
    return f"{named}: {problem.message.removeprefix(_NOT_YET)}" if named else problem.message.removeprefix(_NOT_YET)


def _names(found: Imported) -> dict[str, str]:
    """The recipe's own key of each key of the job that comes from one, by the job's."""
    names = {dotted(path): one.text for path, one in found.origins.items() if one.kind == "recipe"}
    for one in found.decides:
        for key in one.keys:
            names.setdefault(key, one.key)
    return names


def _lacks(left: Left) -> bool:
    """True for a key that names a file which is not there: without it the answer would be about another job."""
    return any(words in left.why for words in _NAMED)


def _of_files(left: Iterable[Left]) -> list[Problem]:
    """The problems of files that the recipe names and that are not there."""
    said = ((one, re.sub(_LOOSE, "", one.why).removeprefix(_NOT_YET)) for one in left if _lacks(one))
    return [Problem(one.where, f"{one.key}: {why}" if one.key else why) for one, why in said]


def _of_model(found: Imported) -> list[Problem]:
    """The problem of a model that is not known, of a recipe with questions: without an answer to these it is no job.

    The job's own field tells it where there are none.
    """
    here = rf": it is not built in; its config.json says the rest (\1): {_TOO}"
    problems = problems_of_model(found) if found.questions else ()
    return [replace(one, message=_LISTS.sub(here, one.message)) for one in problems]


def _left_out(left: Iterable[Left]) -> dict[str, list[dict[str, str]]]:
    """Keys that the answer leaves out, in words that know no option of the command line.

    `missed`: those that the recipe says, what is refused before what changes little and what is not known; `unsaid`:
    defaults of the release, and what it does without being asked. Each with its key, value and why.
    """
    rows: dict[str, list[dict[str, str]]] = {"missed": [], "unsaid": []}
    left = [*left]
    said = [*missed(left).values()]
    for one in (*said, *(one for one in left if one not in said)):
        if one.kind == "no effect" or _lacks(one):
            continue
        why = re.sub(_LOOSE, "", one.why)
        is_early, key = why.startswith(_NOT_YET), one.key
        why = why.removeprefix(_NOT_YET)
        if not key:
            key, _, why = why.partition(": ")
        why = why or f"rankscope does not know it{one.near and f', only {one.near}'}"
        why = f"not modelled yet: {why}" if is_early else why
        rows["missed" if one in said else "unsaid"].append({"key": key, "value": one.value, "why": why})
    return rows


def recipe(question: Question) -> dict[str, Any]:
    """The job as a recipe of a format, its launch command, and what the recipe does not say."""
    scenario = question.scenario()
    made = convert(scenario, str(question.rest.get("format"))).without_refused()
    return {"file": made.file or f"recipe{made.suffix}", "text": recipe_text(made, scenario.name),
            "launch": made.launch, "beside": dict(made.beside), "left": [left_line(one) for one in made.left]}


def formats(question: Question) -> dict[str, Any]:
    """Formats of recipes in which this job can be written, and why it cannot in the others."""
    scenario, found, refused = question.scenario(), list[str](), dict[str, str]()
    for name in writable_formats():
        try:
            convert(scenario, name)
        except RankscopeError as error:
            why = "; ".join(one.message.removeprefix(_NOT_YET) for one in error.problems[:3])
            refused[name] = re.sub(r" \(--set [^)]*\)", "", why)
            continue
        found.append(name)
    return {"formats": found, "refused": refused}
