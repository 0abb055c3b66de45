"""LoRA by module name: a linear whose path ends with a name of the target list gets an adapter, nothing else does.

The adapters are PEFT's ([Note: PEFT's adapters] in `simcore/operators/hf/peft.py`): dropout is on their input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simcore.errors import InputError, NotYet, Problem
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.common.expert_adapters import expert_adapters, names_of_experts
from simcore.frameworks.common.qlora import TUNE_OPTION
from simcore.models.blocks import Head, LayerKind
from simcore.models.tensor import TensorSpec
from simcore.placement.job import Draft, Job
from simcore.recording.options import LoraDropout

__all__ = ["DEFAULT_TARGETS", "dropout_at", "name_adapters", "peft_dropout"]

DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj",
                   "qkv_proj", "gate_up_proj", "Wqkv", "input_linear", "output_linear")
"""The last five are those of Phi-3, of MPT, and of Granite's MLP. Not `out_proj`: Mamba's kernel reads its weight."""


def name_adapters(kind: LayerKind, specs: tuple[TensorSpec, ...], lora: LoraChoice) -> tuple[TensorSpec, ...]:
    """Returns the LoRA tensors of one kind of layer; `specs`: the tensors that the layer has without them.

    For every linear whose path ends with a target (of `DEFAULT_TARGETS` if `lora` names none) and not excluded, whole
    parts of the path (PEFT 0.21.2 `tuners/tuners_utils.py` check_target_module_exists):
    `lora_a` [rank, in] and `lora_b` [out, rank], and for DoRA `lora_magnitude_vector` [out]. The output head's name is
    `lm_head`. Names of transformers 4's experts: [Note: names of fused experts]. Linears of a vision tower that
    is given no images lie beside the embedding; their adapters get no gradient.
    """
    head = isinstance(kind.block, Head)
    fused = names_of_experts(kind.family, lora.implementation)
    targets = [name for name in lora.target_modules or DEFAULT_TARGETS if name not in fused]
    out: list[TensorSpec] = []
    for spec in specs:
        module = "lm_head" if head else spec.path if spec.copies == 1 else spec.path.rpartition(".")[2]
        is_target = (spec.path in targets) if lora.is_exact else _ends(module, targets)
        if not (head or spec.module == "linear") or not is_target or _ends(module, lora.exclude_modules):
            continue
        out += _pair(spec, lora, "" if head else f"{spec.path}.")
    return (*out, *expert_adapters(kind, specs, lora))


def _pair(spec: TensorSpec, lora: LoraChoice, at: str) -> Iterator[TensorSpec]:
    """Factors of a linear's adapter, and DoRA's magnitudes; `at`: path of the linear, with a dot at the end, or ""."""
    rows, columns = spec.shape
    out, into = spec.dims
    shapes: list[tuple[str, tuple[int, ...], tuple[str, ...]]] = [
        ("lora_a", (lora.rank, columns), ("rank", into)), ("lora_b", (rows, lora.rank), (out, "rank"))]
    shapes += [("lora_magnitude_vector", (rows,), (out,))] * lora.use_dora
    for name, shape, dims in shapes:
        yield TensorSpec(f"{at}{name}.weight", shape, dims, "adapters", "adapter", copies=spec.copies,
                         trainable=not spec.rests, rests=spec.rests)


def _ends(module: str, names: Iterable[str]) -> bool:
    """True if the path of a module inside its layer ends with one of the names; NotYet for names of single layers."""
    for name in names:
        if any(part.isdigit() for part in name.split(".")):
            raise NotYet(Problem("training.lora", f"{name!r} names single layers or experts; only names that treat all "
                                 "layers of a kind alike are modelled"))
    return any(f".{module}".endswith(f".{name}") for name in names)


def dropout_at(job: Draft, default: LoraDropout, source: str) -> LoraDropout:
    """Returns the place of the adapters' dropout, as the scenario asks or `default`; "" without dropout.

    InputError for a place without dropout.
    """
    lora = job.scenario.training.lora
    if not lora.dropout:
        if lora.dropout_position != "auto":
            raise InputError(Problem(job.scenario.where("training", "lora", "dropout_position"),
                                     "dropout_position: changes nothing without dropout"))
        return ""
    if lora.dropout_position != "auto":
        return lora.dropout_position
    job.note("training.lora.dropout_position", default, source)
    return default


def peft_dropout(job: Draft) -> LoraDropout:
    """Returns the place of dropout around PEFT's adapters: "pre", or "" without it.

    IllegalLayout or NotYet for dropout of their output and for variants that are not described.
    """
    lora, source = job.scenario.training.lora, "PEFT 0.21.2 tuners/lora/layer.py"
    if job.scenario.framework_options.get(TUNE_OPTION):
        _check_torchtune(job)
    if lora.use_dora:
        _check_dora(job)
    if lora.use_rslora:
        job.note("training.lora.use_rslora", "no effect on bytes and time: a number scales by alpha / sqrt(rank)",
                 f"{source} update_layer")
    found = dropout_at(job, "pre", f"{source} forward: lora_B(lora_A(dropout(x)))")
    if found == "post":
        raise job.illegal("training.lora.dropout_position", "PEFT drops the adapter's input (pre)", source)
    return found


def _check_torchtune(job: Job) -> None:
    lora, source = job.scenario.training.lora, "torchtune bd2a0fc7 modules/peft/lora.py LoRALinear"
    if lora.use_dora:
        raise job.not_yet("training.lora.use_dora", "torchtune's DoRALinear over NF4Tensor")
    if lora.use_rslora:
        raise job.illegal("training.lora.use_rslora", "torchtune's adapters scale by alpha / rank alone", source)


def _check_dora(job: Job) -> None:
    at, training = "training.lora.use_dora", job.scenario.training
    if training.method == "qlora" and training.quantization.format == "int8":
        raise job.not_yet(at, "DoRA over LLM.int8() (served: over nf4 and fp4, and over 16 bits)")
