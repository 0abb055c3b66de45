"""Mixed precision by autocast around plain modules: parameters in fp32, products in 16 bits.

transformers 5.23 Trainer with `bf16` or `fp16`, through accelerate 1.15 `accelerator.py`, prepare_model: the model's
forward, loss and all, under torch.autocast. fp16 scales its loss (`torch/amp/grad_scaler.py`): two numbers on the
device, and gradients are unscaled in place. PEFT 0.21.2 `utils/other.py`, prepare_model_for_kbit_training, casts all
16-bit parameters that are not packed to fp32: embedding, head and norms, and with the embedding what layers hand on.
axolotl 067b021c `loaders/model.py`, _convert_embedding_modules_dtype, casts these back ("cast_back"), so that of a
model without Mamba layers nothing is left in fp32 (but biases), of one with them their convolution, output projection
and numbers of heads. Of a model that is trained in full the same function of axolotl casts norms and tables of tokens
to fp32, and back only for flash-attn, FSDP and cut cross entropy (should_convert, there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from simcore.models.blocks import Attention, Branch, FinalNorm, GatedDeltaNet, Mamba2, Mixer, Mlp, Moe
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.chunked import LM_HEAD
from simcore.placement.job import Draft, Job
from simcore.recording.layer import KEPT_ALONE, PREFERENCE

__all__ = ["AUTOCAST_OPTIONS", "Mixed", "head_given", "is_widened", "mixed_of", "stays_wide", "widens_at"]

_KBIT: Final = "prepare_model_for_kbit_training"
_CAST_BACK: Final = "cast_back"
_WIDENS: Final = "convert_embedding_modules_dtype"
AUTOCAST_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {"autocast": (None, True, False),
                                                       _KBIT: (True, False, _CAST_BACK), _WIDENS: (True, False)}
_CASTS_TRAINED: Final = ("preference_softmax", "kto_softmax")
"""Losses of LLaMA-Factory's trainers, which casts what trains alone to fp32, and no reference."""
_OF_TOWER: Final = ("vision_tower", "projector")
_NARROW_NORM: Final = "nemotron"
"""Family whose LayerNorm autocast leaves in the type of products."""
_UNSCALED: Final = "torch 2.13 torch/amp/grad_scaler.py unscale_"


@dataclass(frozen=True, slots=True)
class Mixed:
    """The mixed precision of one job.

    `stored`: dtype of parameters that are not packed; `autocast`: forward runs under torch.autocast. `casts_back`: of
    what PEFT casts to fp32, norms, embedding and head are cast back. `widens`: norms, embedding and head alone are in
    fp32.
    """

    stored: str
    autocast: bool
    casts_back: bool = False
    widens: bool = False

    @property
    def stream(self) -> str:
        """Dtype of the embedding, and with it of what layers hand on."""
        return "fp32" if self.widens else self.stored


def mixed_of(job: Draft, options: dict[str, Any]) -> Mixed:
    """Returns the dtype in which parameters are stored, and whether forward runs under autocast, with defaults.

    `options`: the framework options that the scenario sets, by name. By default parameters have the compute dtype (fp32
    with `prepare_model_for_kbit_training`), and autocast is on if they differ from it. IllegalLayout for dtypes that
    differ without autocast; under it parameters must be in fp32 or in the compute dtype (NotYet).
    """
    given = job.scenario.training.precision.params
    if options.get(_KBIT) and job.scenario.training.method != "qlora":
        job.refuse_idle(options, _KBIT, "without qlora")
    if options.get(_KBIT) is True:
        stored = job.auto("training.precision.params", given, "fp32", "PEFT 0.21.2 utils/other.py:205, all that is not "
                          "packed")
    else:
        stored = job.auto("training.precision.params", given, job.compute, "model.to(dtype): no autocast")
    wide, widens = stored != job.compute, bool(options.get(_WIDENS))
    if widens:
        _check_widened(job, options, stored)
    autocast = wide or widens if options.get("autocast") is None else bool(options["autocast"])
    if autocast and options.get("autocast") is None:
        job.note("framework_options.autocast", "true", "accelerate 1.15 accelerator.py prepare_model")
    if autocast:
        _check(job, stored, casts=bool(options.get(_KBIT)))
    elif wide or widens:
        raise job.illegal("framework_options.autocast", f"{'fp32' if widens else stored} parameters and {job.compute} "
                          "products without autocast: expected mat1 and mat2 to have the same dtype",
                          "torch 2.13 F.linear")
    casts_back = options.get(_KBIT) == _CAST_BACK
    if casts_back and not autocast:
        raise job.illegal(f"framework_options.{_KBIT}", f"{_CAST_BACK} without autocast: expected mat1 and mat2 to "
                          "have the same dtype", "torch 2.13 F.linear")
    return Mixed(stored, autocast, casts_back, widens)


def _check_widened(job: Job, options: dict[str, Any], stored: str) -> None:
    """Raises NotYet, or InputError, for what was not measured with norms and tables in fp32."""
    training, at = job.scenario.training, f"framework_options.{_WIDENS}"
    if training.method != "full" or stored == "fp32":
        job.refuse_idle(options, _WIDENS, "with adapters, which cast it back, or where all is in fp32")
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    if job.graph.architecture.has_tower or not all(
            isinstance(block, Mlp) or (isinstance(block, Attention) and not block.sinks) for block in blocks):
        raise job.not_yet(at, "norms and tables in fp32 beside other layers than attention and MLPs of text")
    if options.get("FastLanguageModel") or training.loss not in ("auto", "hf", "hf_keep_logits", "liger"):
        raise job.not_yet(at, f"norms and tables in fp32 with Unsloth's layers or training.loss: {training.loss}")


def is_widened(spec: TensorSpec) -> bool:
    """True for a parameter of a norm, of the embedding or of the head, which axolotl casts to fp32."""
    return not spec.is_buffer and (spec.module in ("norm", "embedding") or spec.component in ("embedding", "lm_head"))


def stays_wide(spec: TensorSpec) -> bool:
    """True for a frozen parameter, not packed, that PEFT casts to fp32 and axolotl does not cast back.

    axolotl asks names of modules for `norm`, `embed_tokens` and `lm_head`: in a vision tower neither positions nor
    patches have one, nor has Pixtral's `ln_pre`.
    """
    if spec.is_buffer or spec.trainable:
        return False
    if spec.rests:
        return spec.module != "adapter" and "norm" not in spec.path
    if spec.component in _OF_TOWER:
        return spec.module != "norm" or spec.name.startswith("ln_")
    return spec.module not in ("norm", "embedding") and spec.component not in ("embedding", "lm_head")


def _squares(block: Mixer) -> bool:
    """True for a dense MLP, or a shared expert, between whose linears there is a squared ReLU."""
    return (isinstance(block, Mlp) and not block.gated and not block.gelu) or (
        isinstance(block, Moe) and not block.gated and not block.gelu and block.shared_ffn > 0)


def widens_at(job: Job, mixed: Mixed) -> int | None:
    """Number of the first layer that puts out fp32 although the embedding puts out 16 bits; None if none does.

    A packed linear puts out the type of its input (bitsandbytes 0.50.2 `nn/modules.py`, Linear4bit.forward: the result
    `.to(inp_dtype)`), and under autocast a square is fp32, and LayerNorm: so is what a branch adds to the stream.
    """
    if job.scenario.training.method != "qlora" or not mixed.autocast or mixed.stream != job.compute:
        return None
    return next((number for number, layer in enumerate(job.graph.layers)
                 if any(_squares(branch.block) or (branch.norm and _is_wide_norm(job, branch))
                        for branch in job.graph.kinds[layer.kind].branches)), None)


def head_given(job: Job, mixed: Mixed) -> str:
    """Dtype of what the last norm puts out under autocast where it is not that of its input, else "".

    torch's LayerNorm is fp32 (torch 2.13 `ATen/autocast_mode.h`, AT_FORALL_FP32). Nemotron's casts to the type of
    products, and runs without autocast (transformers 5.23 `models/nemotron/modeling_nemotron.py`, NemotronLayerNorm1P).
    """
    last = next((kind for kind in job.graph.kinds if isinstance(kind.block, FinalNorm)), None)
    if not mixed.autocast or last is None:
        return ""
    if last.family == _NARROW_NORM:
        return job.compute
    assert isinstance(last.block, FinalNorm)
    return "fp32" if last.block.layer_norm and last.block.norm_bias else ""


def _is_wide_norm(job: Job, branch: Branch) -> bool:
    return branch.layer_norm and branch.norm_bias and job.graph.architecture.family != _NARROW_NORM


def _check(job: Job, stored: str, *, casts: bool) -> None:
    if stored not in ("fp32", job.compute) or job.compute not in ("bf16", "fp16"):
        raise job.not_yet("training.precision", f"{stored} parameters under autocast to {job.compute}")
    training = job.scenario.training
    if job.compute == "fp16" and stored == "fp16" and (training.method == "full" or training.lora.dtype != "fp32"):
        raise job.illegal("training.precision.params", "Attempting to unscale FP16 gradients: parameters in fp32 are "
                          "asked for", _UNSCALED)
    if casts and job.has_experts:
        raise job.not_yet("framework_options.autocast", "experts that PEFT casts to fp32, whose grouped products "
                          "autocast leaves in fp32 (prepare_model_for_kbit_training)")
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    if not all(isinstance(block, Mlp) or (isinstance(block, Attention) and not block.sinks)
               or (isinstance(block, Mamba2 | GatedDeltaNet) and stored == job.compute)
               or (isinstance(block, Moe) and stored == job.compute and job.graph.implementation == "hf")
               for block in blocks):
        raise job.not_yet("framework_options.autocast", "autocast over experts, the gated delta rule or Mamba layers "
                          "in fp32, or over attention sinks")
    if training.method == "qlora" and stored == job.compute and any(map(_squares, blocks)) and (
            job.graph.implementation != "hf" or training.quantization.format == "int8"):
        raise job.not_yet("framework_options.autocast", "squares in fp32 before a packed linear of another kind than "
                          "transformers' layers in 4 bits, whose output in fp32 makes the residual stream fp32")
    if stored != job.compute and training.loss in _CASTS_TRAINED:
        raise job.not_yet("training.precision.params", f"{training.loss} in full, of parameters in {stored} beside "
                          f"a reference in {job.compute}")
    if stored != job.compute:
        job.one_of("training.loss", job.scenario.training.loss, ("auto", "hf", "hf_keep_logits", "liger", LM_HEAD,
                                                                 *KEPT_ALONE, *sorted(PREFERENCE)))
