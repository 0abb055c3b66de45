"""The scenario that a written recipe is read as, with its scenario's answers to what the recipe leaves open."""

from __future__ import annotations

from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.converted import Converted
from simcore.recipes.importing import import_files
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["read_back"]


def read_back(made: Converted, asked: Scenario) -> Scenario:
    """The imported recipe. A test's own reader: of `converting` nothing is used."""
    words = " ".join([made.launch, *made.beside.values()]).split()
    name = next((word for word in words if word.endswith(made.suffix)), f"recipe{made.suffix}")
    files = [RecipeFile(str(asked.folder / name), made.text)]
    files += [RecipeFile(str(asked.folder / beside), text) for beside, text in made.beside.items()]
    form = "" if made.beside else made.format
    if made.launch:
        files.append(RecipeFile(str(asked.folder / "launch.sh"), made.launch))
    plain = asked.normalised()
    settings = {"model": plain["model"], "training.micro_batch_size": asked.training.micro_batch_size}
    answers = Answers(Answer(asked.world_size, "gpus"), Answer(asked.training.seq_len, "length"),
                      Answer(plain["topology"], "topology"))
    imported = import_files(files, answers, form)
    if imported.questions:
        imported = import_files(files, Answers(answers.gpus, answers.seq_len, answers.topology, settings),
                                form).with_settings(settings)
    imported.expect_complete()
    return parse_scenario(imported.document())
