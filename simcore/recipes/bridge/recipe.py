"""Reads recipes of Megatron-Bridge: by name with overrides, or the configuration that a run writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.recipes.answers import Answer, Answers
from simcore.recipes.bridge.experts import read_experts
from simcore.recipes.bridge.framework import read_framework
from simcore.recipes.bridge.model import read_model
from simcore.recipes.bridge.named import COMMIT, Launch, launch_of, names_in, present_name
from simcore.recipes.bridge.offload import read_offload
from simcore.recipes.bridge.parallel import gpus_of, machine_of, read_degrees, read_overlap, unknown_machine
from simcore.recipes.bridge.provider import leave_rest
from simcore.recipes.bridge.rows import ROWS, SMALL, expect_fields, give_up, read_small, reason_of
from simcore.recipes.bridge.scaling import scaled
from simcore.recipes.bridge.selection import selects
from simcore.recipes.bridge.step import (
    read_formats,
    read_graphs,
    read_lengths,
    read_loss,
    read_method,
    read_recompute,
    read_stages,
    read_states,
)
from simcore.recipes.bridge.towers.images import read_images, splits_sequences
from simcore.recipes.bridge.variables import read_variables
from simcore.recipes.bridge.written import WRITER
from simcore.recipes.draft import Draft
from simcore.recipes.environment import with_environment
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported, Left, read_known, with_job
from simcore.recipes.machine import read_machine
from simcore.recipes.megatron.launch import agreed
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.rows import read_rows

__all__ = ["FORMAT"]

_MOCK: Final = "mock samples of the model's length, no packs, stand for it under Bridge's launchers"
_BLOCKS: Final = frozenset({"model", "train", "ddp", "optimizer"})


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    if document is None:
        return len(file.text) < 2**16 and (bool(names_in(file.text)) or selects(file.text))
    return document.data.keys() >= _BLOCKS and all(isinstance(document.data[name], dict) for name in _BLOCKS)


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    launch = launch_of(file.text, file.path, answers.variables, file.sources) if file.mapping() is None else None
    return read_known(lambda: _of_launch(files, launch, answers, loose=loose), launch.unknown if launch else {})


def _of_launch(files: Sequence[RecipeFile], launch: Launch | None, answers: Answers, *, loose: bool) -> Imported:
    """Reads a recipe that a launch names; without one the values of a run_config.yaml."""
    file = files[0]
    document, name = launch.document if launch else file.document, Path(file.path).stem
    gpus, machine, unknown, says = answers.gpus, "", "", ""
    owns, variables = True, tuple[tuple[str, str, str], ...]()
    draft = Draft("bridge", file.path, answers)
    if launch is not None:
        name, variables = launch.name, launch.environment
        draft.left += launch.left
        owns = launch.data_owns
        present = present_name(name)
        gpus = agreed(gpus, launch.gpus) or gpus_of(present, f"{file.path} {present}")
        machine, unknown = machine_of(present), unknown_machine(present)
        says = "the recipe's name says the GPU" if present == name else f"stands for {present}, whose name says the GPU"
        document = scaled(draft, document, name, gpus, launcher=launch.launcher,
                          given=launch.gives("train.global_batch_size"))
        expect_fields(draft, document, launch.given)
        for key in launch.open_keys:
            _leave_open(draft, key, document.where(()))
        if launch.mocks:
            draft.left.append(Left("no effect", document.where(()), "dataset.*", "the recipe's",
                                   f"{_MOCK} ({launch.mocks})"))
    draft.infer("name", name, "the recipe's name" if document is not file.mapping() else "the file's name")
    for other in files[1:]:
        draft.fail(other.path, "a recipe of Bridge is one file")
    reader = Reader(document)
    _read_parts(reader, draft, gpus, (machine, says), unknown, owns=owns)
    read_small(reader, draft)
    read_rows(reader, draft, ROWS)
    read_variables(reader, draft)
    leave_rest(reader, draft)
    if draft.refuses("model._target_"):
        draft.idle(reader.matching("model.*"), "the provider's own; it is not read")
    if draft.wrong or draft.refused:
        left = {(one.where, one.key) for one in draft.left}
        draft.use(*(one for one in reader.handed_out()
                    if (one.where, one.key) not in left and not draft.refuses(one.key)))
    return with_job(with_environment(draft.imported([reader], loose=loose), variables), launch.job if launch else ())


def _leave_open(draft: Draft, key: str, where: str) -> None:
    """Lists a key whose value the recipe computes, if nothing depends on it; refuses another."""
    why = reason_of(key)
    if key in SMALL:
        draft.left.append(Left("not modelled", where, key, "computed", SMALL[key][1]))
    elif why:
        draft.left.append(Left("no effect", where, key, "computed", why))
    else:
        give_up(draft, where, f"not yet: {key} of this recipe, which is computed (Bridge {COMMIT}): give it as an "
                              "override")


def _read_machine(draft: Draft, other: str) -> None:
    """Asks for the machine; `other`: a GPU of the recipe's name that is not known, which an answer only stands for."""
    answer = draft.answers.topology
    if other and answer is None:
        draft.ask("topology", "--topology NAME, such as gb300-nvl72", f"machine: the recipe's name says {other}, which "
                  "is not known here; numbers are those of the machine that is named")
        return
    read_machine(draft, None)
    if other and answer is not None:
        draft.left.append(Left("not modelled", draft.path, "topology", other, f"the recipe's name says {other}, which "
                               f"is not known here: numbers are those of {answer.value}"))


def _read_parts(reader: Reader, draft: Draft, gpus: Answer | None, machine: tuple[str, str], other: str, *,
                owns: bool) -> None:
    """`machine`: the topology that the recipe's name says, "" for none, and how; `other`: a GPU that is not known."""
    read_model(reader, draft)
    read_framework(reader, draft)
    if machine[0] and draft.answers.topology is None:
        draft.infer("topology", *machine)
    else:
        _read_machine(draft, other)
    copies = reader.integer("ddp.num_distributed_optimizer_instances")
    if copies is not None and copies.value > 1:
        draft.put("mesh.dp_replicate", copies)
    else:
        draft.use(copies, why="1, as without it")
    data = read_degrees(reader, draft, gpus)
    read_lengths(reader, draft, owns=owns)
    read_images(reader, draft)
    read_stages(reader, draft)
    parallel = reader.flag("model.sequence_parallel")
    if parallel is not None and parallel.value and draft.values.get("mesh", {}).get("tp", 1) == 1:
        draft.infer("training.sequence_parallel", False, "switched off where tp is 1", parallel,  # noqa: FBT003
                    source="Bridge models/transformer_config.py")
    elif draft.values.get("mesh", {}).get("tp", 1) > 1 and splits_sequences(draft):
        draft.infer("training.sequence_parallel", True, "switched on where tp is over 1", parallel,  # noqa: FBT003
                    source="Bridge models/qwen_vl/qwen3_vl_provider.py:305")
    elif parallel is not None:
        draft.put("training.sequence_parallel", parallel)
    read_recompute(reader, draft)
    read_offload(reader, draft)
    read_formats(reader, draft)
    read_states(reader, draft)
    read_method(reader, draft)
    read_loss(reader, draft)
    read_experts(reader, draft)
    read_graphs(reader, draft)
    read_overlap(reader, draft, data)


FORMAT: Final = Format("bridge", "Megatron-Bridge recipes and run_config.yaml", _recognises, _read, WRITER)
