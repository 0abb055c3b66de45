"""The phase that stack frames tell, and frames as several programs print them."""

from __future__ import annotations

import pytest

from simcore.validation.out_of_memory.traceback import Frame, frame_of, phase_of

MODULE = Frame("torch/nn/modules/module.py", "_call_impl")
TRAIN = Frame("transformers/trainer.py", "training_step", "loss = self.compute_loss(model, inputs)")
LAYER = Frame("transformers/models/llama/modeling_llama.py", "forward")
BACKWARD = Frame("torch/autograd/graph.py", "_engine_run_backward")
STEP = Frame("torch/optim/adamw.py", "step")


@pytest.mark.parametrize(("line", "frame"), [
    ('  File "/a/b.py", line 12, in forward', Frame("/a/b.py", "forward")),
    ('    File "C:\\a\\b.py", line 1, in <module>', Frame("C:/a/b.py", "<module>")),
    ("File /opt/torch/optim/adam.py:163, in Adam.step(self, closure)", Frame("/opt/torch/optim/adam.py", "step")),
    ("/usr/lib/torch/optim/adam.py in _init_group(self, group)", Frame("/usr/lib/torch/optim/adam.py", "_init_group")),
    ("[/usr/a/operations.py](https://localhost:8080/#) in _convert_to_fp32(tensor)",
     Frame("/usr/a/operations.py", "_convert_to_fp32")),
    ("<ipython-input-7-3d62c575fcfd> in <cell line: 1>()", None),
    (".venv/lib/transformers/trainer.py:1412: in train", Frame(".venv/lib/transformers/trainer.py", "train")),
    ("see a.py for more", None), ("    loss.backward()", None), ("", None)])
def test_frames(line: str, frame: Frame | None) -> None:
    assert frame_of(line) == frame


@pytest.mark.parametrize(("frames", "phase"), [
    ([TRAIN, MODULE, LAYER], "forward"),
    ([TRAIN, MODULE, Frame("torch/nn/functional.py", "cross_entropy")], "loss"),
    ([TRAIN, MODULE, Frame("modeling_llama.py", "forward", "logits = logits.float()")], "loss"),
    ([TRAIN, Frame("x.py", "step", "loss.backward()"), BACKWARD], "backward"),
    ([TRAIN, Frame("deepspeed/runtime/zero/stage3.py", "backward")], "backward"),
    ([TRAIN, BACKWARD, Frame("torch/utils/checkpoint.py", "unpack_hook"), MODULE, LAYER], "backward"),
    ([Frame("x.py", "train", "optimizer.step()"), STEP, Frame("torch/optim/adamw.py", "_multi_tensor_adamw")],
     "optimizer"),
    ([Frame("megatron/core/optimizer/optimizer.py", "step_with_ready_grads")], "optimizer"),
    ([STEP, Frame("lightning/optimizer.py", "closure"), MODULE, LAYER], "forward"),
    ([STEP, Frame("lightning/optimizer.py", "closure"), BACKWARD], "backward"),
    ([Frame("transformers/trainer.py", "_save_checkpoint"), Frame("torch/nn/modules/module.py", "state_dict")], "save"),
    ([Frame("torch/serialization.py", "load"), Frame("torch/serialization.py", "_load")], "load"),
    ([Frame("transformers/modeling_utils.py", "from_pretrained")], "load"),
    ([Frame("deepspeed/__init__.py", "initialize")], "setup"),
    ([Frame("torch/nn/modules/module.py", "to"), Frame("torch/nn/modules/module.py", "_apply")], "setup"),
    ([Frame("vllm/v1/worker/gpu_worker.py", "execute_model"), MODULE, LAYER], "generation"),
    ([Frame("mine/experts.py", "forward", "y = torch._grouped_mm(x, w)")], "forward"),
    ([Frame("x.py", "main")], ""), ([], "")])
def test_phases(frames: list[Frame], phase: str) -> None:
    assert phase_of(frames)[0] == phase


def test_the_innermost_frame_is_named_with_its_code() -> None:
    inner = Frame("/x/torch/utils/checkpoint.py", "unpack_hook", "frame.recompute_fn(*args)")
    assert phase_of([TRAIN, BACKWARD, inner]) == (
        "backward", "utils/checkpoint.py unpack_hook: frame.recompute_fn(*args), in a layer that is recomputed")


def test_the_innermost_frame_is_named_where_none_tells_a_phase() -> None:
    frames = [Frame("a/x.py", "main"), Frame("b/y.py", "make", "t = empty(n)")]
    assert phase_of(frames) == ("", "b/y.py make: t = empty(n)")
    assert phase_of([]) == ("", "")
