"""Reads arguments of Megatron-LM out of shell scripts, argument lists and the model_config.yaml of its tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.draft import Draft
from simcore.recipes.environment import row_of
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported, Left, with_job
from simcore.recipes.launch.launch_of import environment_of
from simcore.recipes.launch.slurm import job_of, options_of_launchers, read_job
from simcore.recipes.launch.starters import starters_of
from simcore.recipes.machine import read_machine
from simcore.recipes.megatron.arguments import MAIN, ArgumentFields, Given, arguments, given, given_by, names_of
from simcore.recipes.megatron.determinism import expect_determinism
from simcore.recipes.megatron.environment import READ, expect_backend, write_environment
from simcore.recipes.megatron.fields import Writer
from simcore.recipes.megatron.launch import agreed, expect_launcher, gpus_of, split_launch
from simcore.recipes.megatron.layout import expect_counts, write_batches, write_mesh, write_pipeline
from simcore.recipes.megatron.model import write_model
from simcore.recipes.megatron.offload import FINE, write_offload
from simcore.recipes.megatron.options import write_options
from simcore.recipes.megatron.refused import refuse_rest
from simcore.recipes.megatron.step import write_formats, write_loss, write_optimizer, write_recompute
from simcore.recipes.megatron.vocabulary import write_vocabulary
from simcore.recipes.megatron.without_effect import OF_TESTS, left_out
from simcore.recipes.megatron.written import WRITER
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.recipe_writer import ScriptArguments
from simcore.recipes.rows import Unmodelled, leave_out, read_rows
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.script import Script, Started, read_script

__all__ = ["FORMAT"]

_ARGUMENTS: Final = "MODEL_ARGS"
_VARIABLES: Final = "ENV_VARS"
_FEW: Final = 3
"""Number of arguments of Megatron that make a command one of Megatron's."""
_TELLING: Final = frozenset({"--num-layers", "--hidden-size", "--micro-batch-size", "--tensor-model-parallel-size",
                             "--use-mcore-models", "--seq-length", "--num-attention-heads"})
_TRAINS: Final = ("pretrain_gpt", "pretrain_mamba", "pretrain_hybrid", "finetune")
"""Scripts of Megatron-LM that train a GPT or a hybrid; the last is modelopt's."""
_OTHERS: Final = ("bert", "t5", "_ict", "vlm", "vision", "retro", "retriev", "inference", "generat", "server", "export",
                  "convert", "quantize", "prune", "train_rl", "mmlu", "validate", "multimodal", "mimo", "preprocess",
                  "tokeniz", "tokenis", "prepare_data", "merge_datasets", "tools/checkpoint", "tasks",
                  "feature_extract")
"""Parts of names of scripts that do something else."""


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    if document is not None:
        block = document.data.get(_ARGUMENTS)
        return isinstance(block, dict) and sum(
            str(name) in arguments() or f"--{str(name).replace('_', '-')}" in arguments() for name in block) >= _FEW
    return sum(f"{name} " in file.text or f"{name}\n" in file.text or f"{name}=" in file.text
               for name in _TELLING) >= _FEW


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    document = file.mapping()
    draft = Draft("megatron", file.path, answers)
    draft.infer("name", _name(file.path), "the file's name")
    for other in files[1:]:
        draft.fail(other.path, "arguments of Megatron are read from one file")
    if document is not None and _ARGUMENTS in document.data:
        return _of_tests(document, draft, loose=loose)
    return _of_script(file, draft, loose=loose)


def _name(path: str) -> str:
    """The file's name; of a test's model_config.yaml the folder's."""
    one = Path(path)
    return one.parent.name if one.stem == "model_config" and one.parent.name else one.stem


# ---- forms ----------------------------------------------------------------------------------------------------------
def _of_tests(document: Document, draft: Draft, *, loose: bool) -> Imported:
    """A model_config.yaml: arguments, variables, and how the test is judged."""
    reader = Reader(document)
    variables = _take_variables(draft, {name: found for name in reader.names(_VARIABLES)
                                        if (found := reader.take(f"{_VARIABLES}.{name}")) is not None})
    read_rows(reader, draft, OF_TESTS)
    return _imported(draft, reader, given_by(document, _ARGUMENTS), draft.answers.gpus, [], variables,
                     loose=loose)


def _of_script(file: RecipeFile, draft: Draft, *, loose: bool) -> Imported:
    """A shell script, or arguments alone."""
    script = read_job(file.text, file.path, draft.answers.variables, file.sources)
    command = _command(script, file.path)
    launch, words = split_launch(command.words)
    if command.within:
        raise InputError(Problem(f"{file.path}:{command.line}", f"the command with Megatron's arguments lies in "
                                                                f"{command.within}: give one command"))
    expect_launcher(launch, file.path)
    _expect_training(draft, launch, f"{file.path}:{command.line}")
    exported = _exported(script, file, draft)
    set_here = Reader(Document(file.path, {name: value for name, value, _ in exported},
                               places={(name,): where for name, _, where in exported}))
    variables = _take_variables(draft, {name: found for name in set_here.names()
                                        if (found := set_here.take(name)) is not None})
    gpus = agreed(draft.answers.gpus, gpus_of(command, script, file.path))
    arguments_given = given(words, file.path)
    imported = _imported(draft, Reader(arguments_given.document), arguments_given, gpus, [set_here], variables,
                         loose=loose)
    starters = starters_of([*command.around, *command.words])
    return with_job(imported, (*job_of(script.sbatch, file.path), *options_of_launchers(starters, file.path)))


def _exported(script: Script, file: RecipeFile, draft: Draft) -> tuple[tuple[str, str, str], ...]:
    """Variables that the training sees; one of memory that is not known is a problem."""
    try:
        return environment_of(script, file.text, file.path)
    except InputError as error:
        for problem in error.problems:
            draft.fail(problem.where, problem.message)
        return ()


def _expect_training(draft: Draft, launch: Sequence[Word], where: str) -> None:
    """Refuses scripts that do something else than train a GPT; one with a name of its own is taken for pretrain_gpt."""
    name = launch[-1].text if launch and (launch[-1].text.endswith(".py") or (launch[-2:-1] and launch[-2].text == "-m")
                                          ) else ""
    short = name.removesuffix(".py").rpartition("/")[2].rpartition(".")[2]
    told = short if short.startswith(_TRAINS) or "pretrain" in short else name
    if any(part in told.lower() for part in _OTHERS):
        raise InputError(Problem(where, f"not yet: {name}: no training of a GPT or a hybrid by its name (read are "
                                        f"{', '.join(f'{one}.py' for one in _TRAINS)}, and scripts of your own)"))
    if name and not short.startswith(_TRAINS):
        draft.left.append(Left("not modelled", where, "", "", f"{name} is taken to train as pretrain_gpt.py does"))


def _command(script: Script, path: str) -> Started:
    """The one command with Megatron's arguments; arguments in variables alone count where no command has any."""
    found = [one for one in script.commands if one.words[0].text not in ("echo", "printf") and _count(one.words)]
    lists = [one for one in found if one.words[0].text.startswith("--")]
    found = [one for one in found if one not in lists and _count(one.words) >= _FEW]
    if lists and not found:
        return Started(tuple(word for one in lists for word in one.words))
    if len(found) > 1:
        most = max(_count(one.words) for one in found)
        found = [one for one in found if 2 * _count(one.words) > most]
    if len(found) > 1 and len({tuple(word.text for word in split_launch(one.words)[1]) for one in found}) > 1:
        lines = ", ".join(str(one.line) for one in found)
        raise InputError(Problem(f"{path}:{found[0].line}", f"{len(found)} commands with Megatron's arguments (lines "
                                                            f"{lines}): give one of them"))
    if found:
        return next((one for one in found if not one.within), found[0])
    words = _of_variables(script)
    if not words:
        raise InputError(Problem(path, "no command with Megatron's arguments: a loop, a file that it sources, or "
                                       "arguments of the script may have them"))
    return Started(words)


def _count(words: Sequence[Word]) -> int:
    return sum(word.text.partition("=")[0] in arguments() for word in words)


def _of_variables(script: Script) -> tuple[Word, ...]:
    """Words of all variables with arguments, but for those whose words another one has."""
    held = [words for words in script.variables.values() if _count(words) >= _FEW]
    lines = [{(word.text, word.line) for word in words} for words in held]
    kept = [words for number, words in enumerate(held)
            if not any(lines[number] <= other and (lines[number] != other or number > place)
                       for place, other in enumerate(lines) if place != number)]
    return tuple(word for words in kept for word in words)


def _take_variables(draft: Draft, variables: dict[str, Taken[Any]]) -> dict[str, Taken[str]]:
    """Reads variables, and returns them as texts; `environment` says what becomes of those that have no key."""
    named = {name: Taken(str(taken.value), taken.path, taken.where, taken.reader) for name, taken in variables.items()}
    write_environment(draft, named)
    for name, taken in named.items():
        row = row_of(name, taken.value)
        if name in READ:
            continue
        if isinstance(row, Unmodelled):
            draft.unmodelled(taken, row.why)
        else:
            draft.idle(taken, row.why)
    return named


# ---- arguments ------------------------------------------------------------------------------------------------------
def _imported(draft: Draft, reader: Reader, found: Given, gpus: Answer | None, others: list[Reader],
              variables: Mapping[str, Taken[str]], *, loose: bool) -> Imported:
    fields = ArgumentFields(reader, draft, found)
    for problem in found.problems:
        draft.fail(problem.where, problem.message)
    expect_backend(draft, variables, fields.text("attention_backend").value or "auto")
    _write(Writer(draft, fields), fields, gpus)
    expect_determinism(draft, fields, variables)
    for row in left_out(draft.values):
        names = [found.keys[name] for name in fields.rest()
                 if any(fnmatchcase(name, pattern) for pattern in row.keys)]
        leave_out(draft, row, reader.matching(*names))
    if draft.refused or draft.wrong:  # what else the model has is not read
        draft.use(*reader.matching(*(found.keys[name] for name in fields.rest())))
        left = {(one.where, one.key) for one in draft.left}
        draft.use(*(one for one in reader.handed_out() if (one.where, one.key) not in left))
    return draft.imported([*others, reader], loose=loose)


def _write(writer: Writer, fields: ArgumentFields, gpus: Answer | None) -> None:
    version = fields.only_in_main()
    if version:
        writer.draft.infer("framework_version", MAIN, f"core 0.16.1 does not have {version[0]}")
    elif fields.flag(FINE).value:
        writer.draft.infer("framework_version", MAIN, "the arguments are main's; core 0.16.1 moves modules to the host "
                           "by other code")
    write_model(writer)
    if writer.draft.refused:
        return
    config: Any = writer.draft.values.get("model", {})
    refuse_rest(writer, windowed=config.get("config") == "gpt-oss-20b")
    expect_counts(writer)
    write_vocabulary(writer, is_main=bool(version))
    read_machine(writer.draft, None)
    write_mesh(writer, gpus)
    write_batches(writer)
    write_pipeline(writer)
    write_recompute(writer)
    write_offload(writer)
    write_formats(writer)
    write_optimizer(writer)
    write_loss(writer)
    write_options(writer)


def _given_in(text: str, path: str) -> dict[str, Any]:
    """Values of the arguments that a script gives, as far as they are known; True of a switch."""
    script = read_script(text, path, {})
    found = given(split_launch(_command(script, path).words)[1], path)
    return {name: found.document.data[name] for name in found.keys if name not in found.unknown}


def _alike(name: str) -> tuple[str, ...]:
    """Arguments that set the field of one."""
    return names_of((arguments()[name].field,)) if name in arguments() else ()


def _takes(name: str) -> str:
    argument = arguments()[name]
    return "none" if argument.is_switch else "many" if argument.takes.endswith("+") else "one"


_ARGUMENTS_OF_SCRIPTS: Final = ScriptArguments(_alike, _takes, _given_in)
FORMAT: Final = Format("megatron", "Megatron-LM arguments", _recognises, _read,
                       replace(WRITER, arguments=_ARGUMENTS_OF_SCRIPTS),
                       repeats="d98e8a64 shell_test_utils/_run_training.sh: yq gives both as arguments")
