"""One scenario on its way into a recipe: written by its format, read back, and compared with the scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, NotYet, Problem, RankscopeError
from simcore.inputs.block import shorten
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.placement.job import topology_of
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.converted import Converted
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported, Left
from simcore.recipes.importing import import_files
from simcore.recipes.launch.arguments import Override
from simcore.recipes.outline import Outline
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.recipe_writer import Job, RecipeWriter
from simcore.recipes.registry import format_named, known_formats
from simcore.recipes.settled import Settled, settled

__all__ = ["Writing", "writable_formats"]

_LAUNCH: Final = "launch.sh"


def writable_formats() -> tuple[str, ...]:
    """Names of the formats that can be written."""
    return tuple(one.name for one in known_formats() if one.writer is not None)


@dataclass(frozen=True)
class Writing:
    """One scenario on its way into one format."""

    format: Format
    writer: RecipeWriter
    outline: Outline
    job: Job

    @classmethod
    def of(cls, scenario: Scenario, named: str) -> Writing:
        """Outline of the recipe, written by its format."""
        names = writable_formats()
        if named not in names:
            raise InputError(Problem(f"--to {named}"[:120], f"expected one of {', '.join(names)}"))
        form = format_named(named, f"--to {named}")
        assert form.writer is not None
        _check_kind(scenario, form.writer, named)
        outline = Outline(named, settled(scenario))
        form.writer.write(outline)
        outline.write_environment()
        outline.leave_rest()
        each = _gpus_of_a_node(scenario)
        job = Job(f"{_file_name(scenario.name)}{form.writer.suffix}", scenario.world_size // each, each,
                  outline.environment)
        return cls(form, form.writer, outline, job)

    def of_file(self, path: str) -> Writing:
        """Copy whose recipe is a file of the user's."""
        return replace(self, job=replace(self.job, file=Path(path).name))

    @property
    def launch(self) -> str:
        """Lines of shell that start the recipe, "" where it has them itself."""
        command = self.writer.launch(self.job)
        return f"{self.job.exports()}{command}" if command else ""

    @property
    def beside(self) -> Mapping[str, str]:
        """Texts of the files that belong to the recipe, by their names."""
        return self.writer.beside(self.outline.nested(), self.job)

    def recipe(self, text: str, overrides: tuple[Override, ...] = ()) -> RecipeFile:
        """A recipe of this scenario, in the scenario's folder."""
        return RecipeFile(str(self.outline.settled.scenario.folder / self.job.file), text, overrides)

    def converted(self, text: str) -> Converted:
        """The result for a recipe's text, which is read back and compared with the scenario."""
        launch, beside = self.launch, self.beside
        refused, left = dict(self.outline.refused), [*self.outline.left]
        try:
            imported, asked = self.read_back(self.recipe(text))
            left += asked
            back = settled(parse_scenario(imported.document()))
        except RankscopeError as error:
            further = [] if refused else [Problem(one.where, f"the recipe is not read back: {one.message}", one.rule)
                                          for one in error.problems]
            return Converted(self.format.name, self.writer.suffix, text, launch, tuple(left),
                             (*refused.values(), *further), beside, self.job.file)
        for key in self.differing(back):
            if key not in refused:
                refused[key] = _difference(self.outline, key, self.outline.settled, back)
        return Converted(self.format.name, self.writer.suffix, text, launch, tuple(left), tuple(refused.values()),
                         beside, self.job.file)

    def differing(self, back: Settled) -> tuple[str, ...]:
        """Keys in which a recipe that was read back asks for something else than the scenario."""
        return self.outline.settled.differing(back, self.outline.means)

    def read_back(self, recipe: RecipeFile) -> tuple[Imported, list[Left]]:
        """The recipe as a scenario, and the keys that it leaves open, which the scenario answers.

        Raises RankscopeError for a recipe that is not read.
        """
        scenario = self.outline.settled.scenario
        further = {**self.beside, **({_LAUNCH: self.launch} if self.launch else {})}
        files = [recipe, *(RecipeFile(str(scenario.folder / name), text) for name, text in further.items())]
        form = "" if self.beside else self.format.name
        machine = scenario.normalised()["topology"]
        answers = Answers(topology=Answer(machine, "topology"))
        imported = import_files(files, answers, form)
        asked: list[Left] = []
        if imported.questions:
            answers = _answered(answers, imported, self.outline.settled)
            asked = [Left("no effect", question.where, question.key, shorten(self.outline.settled.values.get(
                question.key)), f"not in a recipe of {self.format.name}: {question.option} says it") for question in
                imported.questions]
            imported = import_files(files, answers, form).with_settings(answers.settings)
        imported.expect_complete()
        return imported, asked


def _check_kind(scenario: Scenario, writer: RecipeWriter, named: str) -> None:
    """Raises NotYet for a scenario of another framework or workload than the format's recipes have."""
    if not writer.takes(scenario.framework):
        run = ", ".join(writer.frameworks)
        raise NotYet(Problem(scenario.where("framework"), f"not yet: framework: {scenario.framework}: recipes of "
                                                          f"{named} run {run} (--set framework=... asks for it)"))
    if scenario.workload != "train":
        raise NotYet(Problem(scenario.where("workload"), f"not yet: workload: {scenario.workload}: recipes of {named} "
                                                         "are written for training by next tokens"))


def _answered(answers: Answers, imported: Imported, settled_: Settled) -> Answers:
    """Answers to the questions of a recipe, from the scenario that it was written for."""
    scenario, settings = settled_.scenario, dict[str, Any]()
    for question in imported.questions:
        if question.key == "training.seq_len":
            answers = replace(answers, seq_len=Answer(scenario.training.seq_len, "training.seq_len"))
        elif question.key == "model":
            settings["model"] = scenario.normalised()["model"]
        elif question.key in settled_.values:
            settings[question.key] = settled_.values[question.key]
    return replace(answers, settings=settings)


def _difference(outline: Outline, key: str, wanted: Settled, back: Settled) -> Problem:
    """Problem of a key that the recipe does not ask for as the scenario does."""
    if key == "model":
        return Problem(outline.where(key), f"not yet: model: {outline.format} recipes that are read make another model "
                                           "of this one")
    asked, made = (shorten(one.values.get(key)) if key in one.values else "nothing" for one in (wanted, back))
    how = "" if key in outline.given_keys else " (by default)"
    return Problem(outline.where(key), f"not yet: {key}: {asked}{how}, and a recipe of {outline.format} asks for "
                                       f"{made}")


def _gpus_of_a_node(scenario: Scenario) -> int:
    """Processes of a node: all GPUs of a machine, or the most that divide the number of ranks."""
    size, most = scenario.world_size, topology_of(scenario).gpus_per_host
    return next(each for each in range(min(size, most), 0, -1) if size % each == 0)


def _file_name(name: str) -> str:
    """Name of a file without its ending, in which only letters, digits, `-` and `_` are left."""
    return "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in name).strip("-") or "recipe"
