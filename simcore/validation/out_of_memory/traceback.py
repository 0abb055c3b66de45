"""Stack frames of a traceback, and the phase of a step that they tell.

Frames come outermost first, as Python prints them, also from IPython (`File x.py:3, in f(a)`, `x.py in f(a)`) and
pytest (`x.py:3: in f`). File names are those of torch 2.13, transformers 5.24, DeepSpeed 0.19.6, megatron-core 0.16.1,
TransformerEngine d0067d0d, bitsandbytes 0.49, Automodel 36044ad3 and vLLM 0.12.

[Note: phases of a stack]
The innermost frame that tells a phase decides; frames of modules tell only that a pass runs. Kernels of backward run on
autograd's thread without Python frames, so a stack that ends in autograd's engine is backward; modules inside it are
run again for recomputation. An optimizer that is given a closure runs forward and backward inside its step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Frame", "Phase", "frame_of", "phase_of"]

Phase = Literal["", "setup", "load", "forward", "loss", "backward", "optimizer", "save", "generation"]


@dataclass(frozen=True)
class Frame:
    """One stack frame: its file, function, and line of code ("" if it is not printed)."""

    file: str
    function: str
    code: str = ""


_FRAMES: Final = (
    re.compile(r'^\s{0,80}File "([^"\n]{1,400})", line \d{1,9}, in ([\w<>.]{1,120})'),
    re.compile(r"^\s{0,80}(?:> )?File ([^\s:,]{1,400}):\d{1,9}, in ([\w<>.]{1,120})"),
    re.compile(r"^\s{0,80}\[?([^\s:()\[\]]{1,400}\.py)\]?(?:\([^)\s]{0,400}\))? in ([\w<>.]{1,120})\("),
    re.compile(r"^\s{0,80}(?:E\s+)?([^\s:()]{1,400}\.py):\d{1,9}: in ([\w<>.]{1,120})"))

_Rule = tuple[Phase, str, tuple[str, ...]]

# (phase, part of the file's path, functions or () for any)
_RULES: Final[tuple[_Rule, ...]] = (
    ("generation", "vllm/", ()),
    ("generation", "sglang/", ()),
    ("generation", "transformers/generation/", ()),
    ("save", "torch/serialization.py", ("save",)),
    ("save", "torch/distributed/checkpoint/", ("save", "async_save", "save_state_dict")),
    ("save", "torch/distributed/fsdp/_state_dict_utils.py", ()),
    ("save", "torch/distributed/checkpoint/state_dict.py", ("get_model_state_dict", "get_state_dict",
                                                            "get_optimizer_state_dict")),
    ("save", "", ("save_checkpoint", "_save_checkpoint", "save_model", "save_pretrained", "state_dict",
                  "save_16bit_model", "sharded_state_dict")),
    ("load", "torch/serialization.py", ("load", "_load")),
    ("load", "torch/distributed/checkpoint/", ("load", "load_state_dict")),
    ("load", "", ("from_pretrained", "load_checkpoint", "load_state_dict", "_load_from_state_dict", "load_model",
                  "_load_state_dict_into_model")),
    ("optimizer", "torch/optim/", ("step", "_init_group")),
    ("optimizer", "transformer_engine/pytorch/optimizers/", ()),
    ("optimizer", "megatron/core/optimizer/", ("step", "step_with_ready_grads", "prepare_grads")),
    ("optimizer", "deepspeed/runtime/", ("step", "_take_model_step", "_optimizer_step")),
    ("optimizer", "bitsandbytes/optim/", ("step", "init_state")),
    ("optimizer", "colossalai/zero/", ("step",)),
    ("backward", "torch/autograd/", ("backward", "_engine_run_backward", "grad")),
    ("backward", "torch/_tensor.py", ("backward",)),
    ("backward", "deepspeed/runtime/", ("backward",)),
    ("loss", "torch/nn/functional.py", ("cross_entropy", "log_softmax", "nll_loss")),
    ("loss", "torch/nn/modules/loss.py", ()),
    ("loss", "transformers/loss/", ()),
    ("loss", "megatron/core/tensor_parallel/cross_entropy.py", ()),
    ("loss", "megatron/core/fusions/fused_cross_entropy.py", ()),
    ("loss", "nemo_automodel/components/loss/", ()),
    ("loss", "liger_kernel/", ("cross_entropy", "fused_linear_cross_entropy_forward")),
    ("setup", "deepspeed/__init__.py", ("initialize",)),
    ("setup", "torch/distributed/fsdp/_init_utils.py", ()),
    ("setup", "torch/distributed/fsdp/_fully_shard/_fsdp_init.py", ()),
    ("setup", "torch/nn/modules/module.py", ("to", "cuda", "to_empty", "_apply")),
    ("setup", "megatron/core/distributed/param_and_grad_buffer.py", ("__init__",)),
    ("setup", "deepspeed/runtime/zero/", ("__init__", "_setup_for_real_optimizer", "initialize_optimizer_states")),
    ("setup", "", ("setup_model_and_optimizer",)),
    ("forward", "torch/nn/modules/module.py", ("_call_impl", "_wrapped_call_impl")),
)

_CODE: Final[tuple[tuple[Phase, re.Pattern[str]], ...]] = (
    ("loss", re.compile(r"\blogits\b[^=\n]{0,80}=|\.log_softmax\(|\bcross_entropy\(|\blm_head\(|\bloss_fct\(")),
    ("backward", re.compile(r"\b(?:loss|accelerator|engine)\.backward\(")),
    ("optimizer", re.compile(r"\boptim(?:izer)?\.step\(|\bexp_avg(?:_sq)?\"?\]? =")),
)
"""Code that tells a phase whatever the file is."""

_PASS: Final = ("forward", "loss")
_RECOMPUTED: Final = ("torch/utils/checkpoint.py", "deepspeed/runtime/activation_checkpointing/",
                      "megatron/core/tensor_parallel/random.py")


def frame_of(line: str) -> Frame | None:
    """Frame that a line of a traceback begins; None for other lines."""
    if ".py" not in line and "File " not in line:
        return None
    for pattern in _FRAMES:
        if match := pattern.match(line):
            return Frame(match[1].replace("\\", "/"), match[2].rpartition(".")[2])
    return None


def phase_of(frames: Sequence[Frame]) -> tuple[Phase, str]:
    """(phase of a step that the frames tell or "", the innermost frame in a few words or "" without frames)."""
    told = [(at, phase) for at, frame in enumerate(frames) if (phase := _phase(frame))]
    closure = max((at for at, frame in enumerate(frames) if "closure" in frame.function), default=-1)
    told = [(at, phase) for at, phase in told if phase != "optimizer" or at > closure]
    if not told:
        return "", _place(frames) if frames else ""
    outside = [(at, phase) for at, phase in told if phase not in _PASS]
    if not outside:
        last = max(told, key=lambda one: (one[1] == "loss", one[0]))
        return last[1], _place(frames)
    at, phase = outside[-1]
    if phase in ("setup", "load") and any(inner > at for inner, one in told if one in _PASS):
        return "forward", _place(frames)  # a pass begins inside: the module was loaded or wrapped when first called
    again = phase == "backward" and any(part in frame.file for frame in frames[at:] for part in _RECOMPUTED)
    return phase, _place(frames) + (", in a layer that is recomputed" if again else "")


def _phase(frame: Frame) -> Phase:
    for phase, file, functions in _RULES:
        if file in frame.file and (not functions or frame.function in functions):
            return phase
    of_any: Phase = "forward" if frame.function == "forward" else ""  # a module's or an autograd function's
    return next((phase for phase, pattern in _CODE if pattern.search(frame.code)), of_any)


def _place(frames: Sequence[Frame]) -> str:
    """Innermost frame, and its line of code."""
    last = frames[-1]
    code = f": {last.code[:100]}" if last.code else ""
    return f"{'/'.join(last.file.split('/')[-2:])} {last.function}{code}"
