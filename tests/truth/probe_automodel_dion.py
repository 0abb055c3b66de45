"""Measures Muon of the `dion` package as NeMo Automodel builds it over FSDP2, on one CPU.

    PYTHONPATH=DION python tests/truth/probe_automodel_dion.py > tests/truth/optimizers/automodel-dion-7452a58.json

nemo-automodel 0.7.0 `components/optim/optimizer.py` MuonConfig and `dion.py`, over models that its own
`parallelize_model` wraps, on torch 2.13's fake process group; DION is a checkout of microsoft/dion at
7452a58, which Automodel's `uv.lock` names. What `torch.compile` makes of its functions runs as Inductor wrote it
(`oracle/inductor.py`). `states`: (bytes, what) of each parameter's; `step`: of the second step, the most bytes beyond
what is there after it, without numbers of one element; `messages`: collectives of a step, one by one. Layouts are
drawn, and none is drawn again because of what came out; `error`: the words at which a layout stops.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from itertools import accumulate
from typing import Any
from unittest import mock

import torch
from drawing import Case, by_name, chosen, numbered
from json_lines import with_cases
from oracle import inductor
from oracle.steps.tracker import Tracker
from torch._inductor import compile_fx
from torch._inductor.graph import GraphLowering
from torch.utils import _python_dispatch as modes

WATCHING: list[Tracker] = []
RUN = {"__name__": "written", "extern_kernels": inductor.Kernels(), "assert_size_stride": inductor.nothing,
       "assert_alignment": inductor.nothing, "empty_strided_cpu": inductor.empty,
       "reinterpret_tensor": inductor.seen_as}


def inner(graph: Any, inputs: Any, **options: Any) -> Any:
    """Inductor up to its code, which then runs on what it is given."""
    found: list[str] = []

    def codegen(lowering: GraphLowering) -> Any:
        found.append(str(inductor.WRITE(lowering)[0].value))
        raise inductor.Written

    with mock.patch.object(GraphLowering, "codegen", codegen), contextlib.suppress(Exception):
        inductor.INNER(graph, inputs, **options)
    assert found, "Inductor wrote nothing"
    names: dict[str, Any] = {}
    with mock.patch("torch._inductor.async_compile.AsyncCompile.cpp_pybinding", return_value=inductor.nothing):
        exec(compile(found[0], "written", "exec"), names)  # noqa: S102
    names |= RUN

    def run(given: Any) -> Any:
        for tracker in WATCHING:
            modes._push_mode(tracker)
        try:
            return names["call"](list(given))
        finally:
            for _ in WATCHING:
                modes._pop_mode()

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def compiled(function: Any = None, **named: Any) -> Any:
    """`torch.compile`, which takes no function under a mode; what it makes is tracked again."""
    if function is None:
        return lambda given: compiled(given, **named)
    made = COMPILE(function, **named, backend=lambda graph, inputs: compile_fx.compile_fx(
        graph, inputs, inner_compile=inner))

    def call(*given: Any, **more: Any) -> Any:
        with modes._disable_current_modes():
            return made(*given, **more)

    return call


COMPILE = torch.compile
torch.compile = compiled  # type: ignore[assignment]
import dion  # noqa: E402, F401

torch.compile = COMPILE

import probe_automodel_dense as dense  # noqa: E402
import torch.distributed as dist  # noqa: E402
from nemo_automodel.components.distributed.config import FSDP2Config  # noqa: E402
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes  # noqa: E402
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model  # noqa: E402
from nemo_automodel.components.optim import optimizer as optimizers  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

SEED, COUNT = 20271301, 44


def one(rng: random.Random) -> Case:
    """A case."""
    width = rng.choice((16, 32))
    heads = rng.choice((4, 8))
    return {"family": rng.choice(("llama", "qwen2", "qwen3", "mistral")),
            "fields": {"hidden_size": chosen(rng, (heads * width, 3), (rng.choice((96, 160, 320)), 1)),
                       "num_attention_heads": heads, "head_dim": width,
                       "num_key_value_heads": heads // rng.choice((1, 2, 4)),
                       "intermediate_size": chosen(rng, (rng.randrange(8, 60) * 16, 4), (rng.randrange(100, 800), 1)),
                       "vocab_size": rng.randrange(20, 90) * 16, "num_hidden_layers": rng.randrange(1, 5),
                       "tie_word_embeddings": rng.random() < 0.5},
            "world": rng.choice((1, 2, 2, 3, 4, 4, 8, 8)), "replicas": chosen(rng, (1, 8), (2, 1)),
            "dtype": rng.choice(("bfloat16", "float32")), "nesterov": rng.random() < 0.4}


def model_of(case: Case) -> Any:
    """The model, wrapped as Automodel wraps it; and its meshes."""
    given = {key: value for key, value in case["fields"].items() if key != "tie_word_embeddings"}
    cfg = dense.config(case["family"], tied=case["fields"]["tie_word_embeddings"], **given)
    cfg.torch_dtype = dtype = getattr(torch, case["dtype"])
    torch.set_default_dtype(dtype)
    if case["family"] in dense.OWN:
        made = dense.OWN[case["family"]](cfg, backend=dense.BACKEND)
    else:
        made = AutoModelForCausalLM.from_config(cfg, dtype=dtype)
    torch.set_default_dtype(torch.float32)
    sizes = ParallelismSizes(dp_replicate_size=case["replicas"])
    mesh = MeshContext.build(FSDP2Config(), sizes, world_size=case["world"] * case["replicas"])
    return parallelize_model(made, mesh), mesh


def give_gradients(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)


def local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def measured(case: Case) -> Case:
    """States, and the second step."""
    dist.init_process_group(backend="fake", rank=0, world_size=case["world"] * case["replicas"], store=FakeStore())
    torch._dynamo.reset()
    try:
        return case | found_in(case)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return case | {"error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        dist.destroy_process_group()


def found_in(case: Case) -> Case:
    model, mesh = model_of(case)
    config = optimizers.MuonConfig(nesterov=case["nesterov"])
    (optimizer,) = config.build(model, device_mesh=mesh.device_mesh)
    give_gradients(model)
    optimizer.step()
    states = {}
    for name, parameter in model.named_parameters():
        states[name] = {key: local(state).untyped_storage().nbytes()
                        for key, state in optimizer.state[parameter].items()}
    tracker = Tracker()
    with tracker:
        for parameter in model.parameters():
            for tensor in (parameter, parameter.grad, *optimizer.state[parameter].values()):
                tracker.number_of(tensor)
        begin = len(tracker.events)
        WATCHING.append(tracker)
        optimizer.step()
        WATCHING.clear()
    running = list(accumulate(change for number, change in tracker.events
                              if number < begin or math.prod(tracker.info[number]["shape"]) > 1))
    return {"step": max(running[begin - 1:]) - running[-1], "left": running[-1] - running[begin - 1],
            "messages": [[row["kind"], row["bytes"], row["group"], row["dtype"]] for row in tracker.comms],
            "states": states}


if __name__ == "__main__":
    cases = by_name(numbered("d", one)(SEED, COUNT))
    with contextlib.redirect_stdout(sys.stderr):
        rows = {name: measured(cases[name]) for name in sys.argv[1:] or cases}
    print(with_cases({"nemo_automodel": "0.7.0", "dion": "7452a58", "torch": torch.__version__.partition("+")[0]},
                     rows, compact=True))
