"""Number formats of a TRL recipe: of the checkpoint as it is read, of products, of what FSDP 2 stores and reduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.trl.grpo.defaults import Release, note_norms

__all__ = ["Formats", "read_formats", "write_formats", "write_reference"]

_NAMES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_READ: Final = "trainer/model_config.py ModelConfig: float32 for `trl sft` unless it says a dtype"
_MIXED: Final = "trainer/base_config.py, up to 0.24 sft_config.py: bf16 unless fp16 is asked for"
_AUTOCAST: Final = "accelerate 1.15.0 accelerator.py prepare_model: forward under autocast, but for DeepSpeed"
_UPCAST: Final = "accelerate 1.15.0 utils/fsdp_utils.py fsdp2_prepare_model: trained parameters are upcast"

_BESIDE: Final = ("preference_fused", "kto_fused")
"""Losses of TRL's newest release beside which a reference model rests."""


@dataclass(frozen=True, slots=True)
class Formats:
    """`stored`: format in which the checkpoint is read; `mixed`: of mixed precision, "" without; `said`: by whom."""

    stored: str
    mixed: str
    dtype: Taken[Any] | None
    said: tuple[Taken[Any], ...]

    @property
    def compute(self) -> str:
        """Format of products."""
        return self.mixed or self.stored


def read_formats(reader: Reader, draft: Draft, launch: Launch, release: Release) -> Formats:
    """Reads `dtype`, `bf16` and `fp16`; without the latter two TRL takes bf16, whatever the launcher says.

    GRPO of 0.18.0 takes what the launcher says.
    """
    dtype, other = reader.text("model_init_kwargs.dtype"), reader.text("dtype")
    if dtype is not None:
        draft.idle(other, f"{dtype.key} goes before it (TRL 1.16.0 scripts/sft.py)")
    dtype = dtype or other
    half, full = reader.flag("bf16"), reader.flag("fp16")
    stored = "fp32" if dtype is None else _NAMES.get(dtype.value, "bf16" if dtype.value == "auto" else "")
    if dtype is not None and not stored:
        draft.fail(dtype.where, f"{dtype.key}: expected auto, bfloat16, float16 or float32, got {dtype.value!r}")
    fp16 = full is not None and full.value
    bf16 = half.value if half is not None else release.mixes and not fp16
    if fp16 and bf16:
        draft.fail(reader.document.path, "bf16 and fp16 are both asked for")
    mixed = "bf16" if bf16 else "fp16" if fp16 else ""
    said: list[Taken[Any]] = [one for one in (half, full) if one is not None]
    if launch.mixed is not None and mixed:
        draft.idle(launch.mixed, "TRL's bf16 and fp16 decide")
    elif launch.mixed is not None:
        name = str(launch.mixed.value).lower()
        mixed = name if name in ("bf16", "fp16") else ""
        said.append(launch.mixed)
    return Formats(stored, mixed, dtype, tuple(said))


def write_formats(draft: Draft, formats: Formats, launch: Launch, release: Release) -> None:
    """Writes the formats of products and parameters, as far as the simulation has others by default."""
    adapters = draft.values.get("training", {}).get("method", "full") != "full"
    zero = launch.zero
    if zero is not None and zero.compute and zero.compute != formats.compute:
        draft.fail(draft.path, f"DeepSpeed's configuration enables {zero.compute}, the trainer "
                               f"{formats.mixed or 'no mixed precision'}")
    by = (*formats.said, *(zero.formats if zero else ()))
    if not by:
        draft.default("training.precision.compute", formats.compute, release.name, _MIXED)
    elif zero is None or not zero.compute:
        draft.infer("training.precision.compute", formats.compute, "mixed precision, else that of the checkpoint",
                    *by, source=_MIXED)
    else:
        draft.use(*formats.said, *zero.formats, why="DeepSpeed's configuration says the format, which must be this one")
    if launch.shards is Shards.ZERO:
        draft.idle(formats.dtype, "DeepSpeed casts the model to the format of products")
    elif launch.shards is Shards.FLAT:
        (_write_units if adapters else _write_flat)(draft, formats)
    elif launch.shards is Shards.EACH:
        trained = "fp32" if formats.mixed and not adapters else formats.stored
        draft.infer("training.precision.params", trained, "what is trained is upcast under mixed precision"
                    if trained != formats.stored else "the checkpoint is read in this format", formats.dtype,
                    *formats.said, source=_UPCAST)
        draft.infer("training.precision.grad_reduce", formats.compute, "reductions in the format of products",
                    *formats.said, source="accelerate 1.15.0 utils/dataclasses.py set_mixed_precision")
    elif formats.dtype is None and formats.compute != "fp32":
        draft.default("training.precision.params", "fp32", release.name, _READ)
    elif formats.stored != formats.compute:
        draft.put("training.precision.params", formats.dtype, formats.stored)
    else:
        draft.idle(formats.dtype, "the format of products" if formats.dtype and formats.dtype.value != "auto"
                   else "the checkpoint's own format, taken to be that of products")
    if adapters and launch.shards in (Shards.NONE, Shards.EACH):
        _write_adapters(draft, formats, launch, release)


def write_reference(draft: Draft, formats: Formats, launch: Launch) -> None:
    """Writes the format of a reference model under FSDP 2, which nothing upcasts, where the policy is in another."""
    training = draft.values["training"]
    beside = training.get("loss") in _BESIDE and training.get("method", "full") == "full"
    if launch.shards is not Shards.EACH or not beside:
        return
    if training.get("precision", {}).get("params") != formats.stored:
        draft.infer("framework_options.reference_dtype", formats.stored, "a reference is not upcast", formats.dtype,
                    source="TRL 1.16.0 models/utils.py prepare_fsdp")


def _write_flat(draft: Draft, formats: Formats) -> None:
    if formats.mixed:
        draft.idle(formats.dtype, "accelerate upcasts flat parameters that train")
    else:
        draft.infer("training.precision.params", formats.stored, "nothing is upcast without mixed precision",
                    formats.dtype, *formats.said, source="accelerate 1.15.0 accelerator.py prepare_model")


def _write_units(draft: Draft, formats: Formats) -> None:
    """Writes formats of FSDP 1 around adapters, which are units: a frozen one stays as it is read."""
    packed = draft.values["training"]["method"] == "qlora"
    draft.infer("training.precision.params", formats.stored, "the checkpoint is read in this format", formats.dtype,
                source="accelerate 1.15.0 accelerator.py prepare_model: frozen flat parameters are not upcast")
    dtype = "fp32" if formats.mixed or not packed else "bf16"
    draft.infer("training.lora.dtype", dtype, "what is trained is upcast under mixed precision" if formats.mixed else
                "the trainer's own format of adapters", *formats.said, source=_UPCAST)
    if not formats.mixed and dtype != formats.stored:
        draft.fail(draft.path, "not yet: adapters in fp32 under FSDP 1 without mixed precision, beside a base in 16 "
                               "bits")


def _write_adapters(draft: Draft, formats: Formats, launch: Launch, release: Release) -> None:
    """Adapters in fp32, but in bf16 beside a packed base, which FSDP 2 upcasts again.

    Where each rank has a copy of the model, the Trainer's forward casts adapters in fp32 for their products; over a
    checkpoint in fp32 the simulation does so by itself.
    """
    packed = draft.values["training"]["method"] == "qlora"
    if packed and not release.narrow_adapters:
        note_norms(draft)
    elif packed and not (launch.shards is Shards.EACH and formats.mixed):
        draft.default("training.lora.dtype", "bf16", release.name, "trainer/sft_trainer.py: as in the paper of QLoRA")
        return
    draft.default("training.lora.dtype", "fp32", "PEFT 0.21.2", "mapping_func.py autocast_adapter_dtype")
    if launch.shards is Shards.NONE and formats.mixed and formats.stored == formats.compute:
        draft.infer("framework_options.autocast", True, "mixed precision of the Trainer",  # noqa: FBT003 - a value
                    *formats.said, source=_AUTOCAST)
