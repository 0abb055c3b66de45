"""Number formats of a LLaMA-Factory recipe.

The checkpoint is read in its own format (`model/loader.py`: torch_dtype auto), which is taken to be bf16. What trains
is cast to fp32 before the Trainer gets it, unless `pure_bf16` is set (`model/adapter.py` init_adapter). accelerate
1.11.0 casts all of a model under FSDP 2, frozen or not, to fp32 if there is mixed precision (`utils/fsdp_utils.py`
fsdp2_prepare_model).
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.tf32 import read_tf32
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_formats"]

_RELEASE: Final = "LLaMA-Factory ff6d4d12"
_READ: Final = f"{_RELEASE} model/loader.py: torch_dtype auto, taken to be bf16"
_UPCAST: Final = f"{_RELEASE} model/adapter.py init_adapter: trained parameters are cast to fp32 unless pure_bf16"
_ALL: Final = "accelerate 1.11.0 utils/fsdp_utils.py fsdp2_prepare_model: all parameters"
_REDUCED: Final = "accelerate 1.11.0 utils/dataclasses.py set_mixed_precision"


def read_formats(reader: Reader, draft: Draft, launch: Launch, method: str) -> None:
    """Writes formats of products, parameters and adapters, as far as the simulation has others by default."""
    half, full, pure = reader.flag("bf16"), reader.flag("fp16"), reader.flag("pure_bf16")
    on = [one for one in (half, full) if one is not None and one.value]
    said: list[Taken[Any]] = [one for one in (half, full, pure) if one is not None]
    if len(on) > 1:
        draft.fail(on[1].where, "bf16 and fp16 are both asked for")
    mixed = "" if not on else "bf16" if on[0].key == "bf16" else "fp16"
    if launch.mixed is not None and mixed:
        draft.idle(launch.mixed, "the trainer's bf16 and fp16 decide")
    elif launch.mixed is not None:
        name = str(launch.mixed.value).lower()
        mixed = name if name in ("bf16", "fp16") else ""
        said.append(launch.mixed)
    stored = "bf16" if pure is not None and pure.value else "fp32"
    if launch.shards is Shards.ZERO:
        _write_zero(draft, launch, mixed, said, pure)
    elif method == "full":
        _write_full(draft, launch, mixed, stored, said)
    else:
        _write_adapters(draft, launch, mixed, stored, said)
    read_tf32(reader, draft, casts=bool(mixed))


def _write_zero(draft: Draft, launch: Launch, mixed: str, said: list[Taken[Any]], pure: Taken[bool] | None) -> None:
    """DeepSpeed casts the model, adapters and all, to the format of products."""
    zero = launch.zero
    if pure is not None and pure.value:
        draft.refuse(pure, "parameters of 16 bits under DeepSpeed without masters")
        said = [one for one in said if one is not pure]
    enabled = zero.compute if zero is not None else ""
    if enabled and enabled != mixed:
        draft.fail(draft.path, f"DeepSpeed's configuration enables {enabled}, the trainer "
                               f"{mixed or 'no mixed precision'}")
    elif not mixed:
        draft.fail(draft.path, "not yet: DeepSpeed without bf16 or fp16")
    formats = zero.formats if zero is not None else ()
    if enabled or not mixed:
        draft.use(*said, *formats, why="DeepSpeed's configuration says the format, which must be this one")
    else:
        draft.infer("training.precision.compute", mixed, "mixed precision", *said, *formats,
                    source="transformers 5.8.0 integrations/deepspeed.py trainer_config_process")


def _write_full(draft: Draft, launch: Launch, mixed: str, stored: str, said: list[Taken[Any]]) -> None:
    draft.infer("training.precision.compute", mixed or stored, "mixed precision, else the format of parameters", *said,
                source=_UPCAST)
    if launch.shards is Shards.FLAT and mixed:
        return  # accelerate keeps flat parameters in fp32
    held = "fp32" if launch.shards is Shards.EACH and mixed else stored
    draft.infer("training.precision.params", held, "what is trained", *said, source=_UPCAST)
    if launch.shards is Shards.EACH:
        draft.infer("training.precision.grad_reduce", mixed or stored, "reductions in the format of products", *said,
                    source=_REDUCED)


def _write_adapters(draft: Draft, launch: Launch, mixed: str, stored: str, said: list[Taken[Any]]) -> None:
    """The base as it is read, adapters in fp32; the Trainer's forward runs under autocast, but not inside FSDP."""
    draft.infer("training.precision.compute", mixed or "bf16", "mixed precision, else the format of the base", *said,
                source=_READ)
    if launch.shards is Shards.FLAT:
        draft.infer("training.precision.params", "bf16", "the checkpoint's format", source=_READ)
        draft.infer("training.lora.dtype", "fp32" if mixed else stored, "what is trained", *said, source=_UPCAST)
        if not mixed and stored != "bf16":
            draft.fail(draft.path, "not yet: adapters in fp32 under FSDP 1 without mixed precision, beside a base in "
                                   "bf16")
        return
    if launch.shards is Shards.EACH:
        held = "fp32" if mixed else "bf16"
        draft.infer("training.precision.params", held, "all of the model under FSDP 2", *said, source=_ALL)
        draft.infer("training.precision.grad_reduce", mixed or "bf16", "reductions in the format of products", *said,
                    source=_REDUCED)
        stored = "fp32" if mixed else stored
    else:
        draft.infer("training.precision.params", "bf16", "the checkpoint's format", source=_READ)
        if mixed:
            draft.infer("framework_options.autocast", value=True, rule="mixed precision of the Trainer",
                        source="accelerate 1.11.0 accelerator.py prepare_model")
    draft.infer("training.lora.dtype", stored, "what is trained", *said, source=_UPCAST)
