"""Files beside a recipe: which is the launcher's, which DeepSpeed's, which PEFT's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simcore.recipes.draft import Draft
from simcore.recipes.launch.accelerate import asks_for_more
from simcore.recipes.launch.arguments import Override
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["Companions", "companions_of", "is_of_accelerate", "is_of_deepspeed", "is_of_peft",
           "with_options"]

_BESIDE_TYPE = frozenset({"compute_environment", "num_processes", "fsdp_config", "deepspeed_config", "mixed_precision",
                          "parallelism_config", "dynamo_config"})
"""Keys of accelerate's YAML, one of which stands beside `distributed_type`."""


@dataclass(frozen=True, slots=True)
class Companions:
    """Readers of the files beside a recipe, each None if the user named no such file."""

    accelerate: Reader | None = None
    deepspeed: Reader | None = None
    adapter: Reader | None = None

    def readers(self) -> list[Reader]:
        """Readers of all files that there are."""
        return [one for one in (self.accelerate, self.deepspeed, self.adapter) if one is not None]


def is_of_accelerate(file: RecipeFile) -> bool:
    """True for the YAML that `accelerate config` writes."""
    document = file.mapping()
    return (document is not None and "distributed_type" in document.data and not _BESIDE_TYPE.isdisjoint(document.data))


def is_of_deepspeed(file: RecipeFile) -> bool:
    """True for DeepSpeed's configuration."""
    document = file.mapping()
    return document is not None and isinstance(document.data.get("zero_optimization"), dict)


def is_of_peft(file: RecipeFile) -> bool:
    """True for the `adapter_config.json` that PEFT saves."""
    document = file.mapping()
    return document is not None and "peft_type" in document.data


def with_options(files: Sequence[RecipeFile], options: Sequence[Override]) -> list[RecipeFile]:
    """Files with the options of `accelerate launch`: in its YAML, or in a new one if they ask for more than ranks."""
    own = next((file for file in files if is_of_accelerate(file)), None)
    if own is not None:
        return [replace(file, overrides=(*file.overrides, *options)) if file is own else file for file in files]
    if not asks_for_more(options):
        return [*files]
    ranks = next((one.value for one in options if one.path == ("num_processes",)), None)
    kind = Override(("distributed_type",), "NO" if ranks == 1 else "MULTI_GPU", options[0].where)
    said = kind.path in {one.path for one in options}
    return [*files, RecipeFile(options[0].where.partition(":")[0], "{}", (*options, *([] if said else [kind])))]


def companions_of(files: Sequence[RecipeFile], draft: Draft, *, takes: Sequence[str]) -> Companions:
    """Readers of files beside the recipe; a second one of a kind, or one that is not in `takes`, is a problem."""
    tests = {"accelerate": is_of_accelerate, "deepspeed": is_of_deepspeed, "adapter": is_of_peft}
    found: dict[str, Reader] = {}
    if "accelerate" in takes:
        files = with_options(files, draft.answers.options)
    for file in files:
        kind = next((name for name, is_one in tests.items() if name in takes and is_one(file)), "")
        if not kind or kind in found:
            draft.fail(file.path, f"is no part of the {draft.format} recipe {draft.path}, or a second one of its kind")
        else:
            found[kind] = Reader(file.document)
    return Companions(found.get("accelerate"), found.get("deepspeed"), found.get("adapter"))
