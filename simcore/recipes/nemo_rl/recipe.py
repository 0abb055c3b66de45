"""Recognises a recipe of NeMo RL, reads its chain of parents, and goes through it block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simcore.inputs.yaml_parser import KeyPath
from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported
from simcore.recipes.inheritance.parents import DEFAULTS, with_parents
from simcore.recipes.inheritance.references import ARITHMETIC, resolved
from simcore.recipes.nemo_rl.cluster import read_cluster
from simcore.recipes.nemo_rl.controller import has_controller, read_controller
from simcore.recipes.nemo_rl.dtensor import read_dtensor
from simcore.recipes.nemo_rl.generation import read_generation
from simcore.recipes.nemo_rl.images import read_images
from simcore.recipes.nemo_rl.keys.switches import read_switches
from simcore.recipes.nemo_rl.keys.without_effect import IDLE_BLOCKS, WITHOUT_EFFECT
from simcore.recipes.nemo_rl.logprobs import read_logprobs
from simcore.recipes.nemo_rl.megatron import read_megatron
from simcore.recipes.nemo_rl.policy import read_batches, read_model
from simcore.recipes.nemo_rl.step import read_step
from simcore.recipes.nemo_rl.teacher import read_distillation, read_teacher
from simcore.recipes.nemo_rl.value import read_ppo, read_value
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.rows import read_rows

__all__ = ["FORMAT"]

_BLOCKS: Final = frozenset({"policy", "cluster", "checkpointing", "logger", "data_plane", "sft", "dpo", "grpo",
                             "loss_fn", "data", "env", "generation", "distillation", "teacher", "ppo", "value",
                             "async_rl"})
_REFUSED: Final = {"teachers": "distillation of several teachers", "rm": "training of a reward model",
                   "eval": "evaluation alone"}
"""Blocks of algorithms that no scenario can say."""


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    if document is None:
        return False
    data, parents = document.data, document.data.get(DEFAULTS)
    names = parents if isinstance(parents, list) else [parents]
    inherits = bool(names) and all(isinstance(name, str) and name.endswith((".yaml", ".yml")) for name in names)
    return (inherits and not (_BLOCKS | _REFUSED.keys()).isdisjoint(data)) or (
        isinstance(data.get("policy"), dict) and isinstance(data.get("cluster"), dict))


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    draft = Draft("nemo_rl", file.path, answers)
    draft.infer("name", Path(file.path).stem, "the file's name")
    if any(name in file.document.data for name in _REFUSED):
        return _refused(Reader(file.document), draft, loose=loose)
    chain, named = with_parents(file, files[1:])
    _expect_signs(file, files[1:], draft)
    for other in files[1:]:
        if other not in named:
            draft.fail(other.path, "is no parent of this recipe")
    document, problems = resolved(chain, ARITHMETIC, _is_idle)
    reader = Reader(document)
    draft.wrong.extend(problems)
    if any(_is_on(reader.document.data, name) for name in _REFUSED):
        return _refused(reader, draft, loose=loose)
    draft.use(reader.take(DEFAULTS), why="names the parents, which are read")
    kind = next((name for name in ("grpo", "dpo", "sft", "distillation", "ppo") if reader.is_mapping(name)), "")
    if not kind:
        draft.fail(file.path, "has no block sft, dpo, grpo, ppo or distillation: name its parents (defaults)")
        draft.idle(reader.matching("*"), "of a recipe that is not complete")
        return draft.imported([reader], loose=loose)
    _read_blocks(reader, draft, kind)
    return draft.imported([reader], loose=loose)


def _expect_signs(file: RecipeFile, beside: Sequence[RecipeFile], draft: Draft) -> None:
    """Records keys that a launch adds though they are there, or changes though they are not.

    Rule: utils/config.py parse_hydra_overrides: Hydra's (_internal/config_loader_impl.py _apply_overrides_to_config),
    on a structure that is closed; `+` is taken where the value is null, or the new one has keys or items.
    """
    known: dict[KeyPath, tuple[str, object]] = {}
    if file.overrides:
        chain = with_parents(replace(file, overrides=()), beside)[0]
        known = {path: (chain.where(path), value) for path, value in _paths(chain.data, ())}
    for one in file.overrides:
        key = ".".join(map(str, one.path))
        where, value = known.get(one.path, ("", None))
        if one.sign == "+" and value is not None and not isinstance(one.value, dict | list):
            draft.fail(one.where, f"+{key}: the recipe has this key ({where}), and Hydra does not append it: "
                                  f"{key} sets it")
        elif one.sign == "~" and one.path not in known:
            draft.fail(one.where, f"~{key}: the recipe has no such key, and Hydra does not take it out")
        elif not one.sign and one.path not in known:
            draft.fail(one.where, f"{key}: the recipe has no such key, and Hydra does not set it: +{key} appends it")
        known[one.path] = one.where, one.value


def _paths(data: object, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    """Paths and values of all keys, also of those that have keys below them."""
    for key, inner in data.items() if isinstance(data, Mapping) else ():
        yield (*path, key), inner
        yield from _paths(inner, (*path, key))


def _read_blocks(reader: Reader, draft: Draft, kind: str) -> None:
    draft.infer("workload", {"sft": "train", "ppo": "grpo"}.get(kind, kind), f"the block {kind}")
    read_model(reader, draft)
    read_images(reader, draft)
    by_megatron = reader.flag("policy.megatron_cfg.enabled")
    draft.use(by_megatron, why="says which workers train")
    generates = kind in ("grpo", "ppo", "distillation")
    engine_gpus = read_generation(reader, draft) if generates else 0
    gpus = read_cluster(reader, draft, engine_gpus)
    is_megatron = by_megatron is not None and by_megatron.value
    if is_megatron:
        read_megatron(reader, draft, gpus, kind)
    else:
        read_dtensor(reader, draft, gpus)
    read_batches(reader, draft, kind)
    read_logprobs(reader, draft, kind, by_megatron=is_megatron)
    read_step(reader, draft, kind, validates=not is_megatron)
    if kind == "grpo" and has_controller(reader):
        read_controller(reader, draft)
    if kind == "ppo":
        read_ppo(reader, draft)
        read_value(reader, draft, gpus)
    if kind == "distillation":
        read_distillation(reader, draft)
        read_teacher(reader, draft, gpus)
    if not generates:
        draft.idle(reader.matching("policy.generation", "policy.generation.*", "loss_fn.*", "on_policy_distillation*",
                                   "policy.refit_buffer_size_gb"), f"of grpo, not of {kind}")
    read_switches(reader, draft, {"data_plane.enabled": "batches on their way between workers are not counted on the "
                                                        "host"})
    read_rows(reader, draft, WITHOUT_EFFECT)


def _is_on(data: Mapping[str, Any], name: str) -> bool:
    return data.get(name) is not None


def _is_idle(path: KeyPath) -> bool:
    """True for keys of blocks on which nothing depends: a reference there may stay unresolved."""
    return path[0] in IDLE_BLOCKS


def _refused(reader: Reader, draft: Draft, *, loose: bool) -> Imported:
    """Result for an algorithm that no scenario can say."""
    name = next(name for name in _REFUSED if _is_on(reader.document.data, name) or name in reader.document.data)
    first = next((one for one in reader.all() if one.path[0] == name), None)
    if first is None:
        draft.fail(reader.document.where((name,)), f"{name}: expected a block")
    else:
        draft.refuse(reader.take(".".join(map(str, first.path))) or first, _REFUSED[name], always=True)
    draft.idle(reader.matching("*"), "of a recipe that is refused")
    return draft.imported([reader], loose=loose)


FORMAT: Final = Format("nemo_rl", "NeMo RL YAML", _recognises, _read)
