"""The glossary and the scenario's keys as Markdown, made from the code's own tables: one spelling of everything.

    python -m simcore.docgen.glossary > docs/glossary.md          the whole glossary
    python -m simcore.docgen.glossary docs/scenario.md            the keys between the two markers of a page

Descriptions that the code does not have (of categories and components) are written here; a test compares their names
with those of programs.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, get_args

from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Mesh as Degrees
from simcore.inputs.scenario import parse_scenario
from simcore.inputs.scenario_keys import idle_rows, key_rows
from simcore.pipeline.schedule import actions
from simcore.placement.framework import UpdateTime
from simcore.placement.layout import Placement
from simcore.placement.mesh import Mesh
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import OP, SLOT
from simcore.recording.tape import Kernel, Op, Stream
from simcore.results.phases import PHASE_PARTS
from simcore.timing.breakdown import PARTS
from simcore.timing.collective import COLLECTIVES

__all__ = ["CATEGORIES", "COMPONENTS", "SERVED", "events", "filled", "glossary", "scenario_keys"]

AXES: Final = {
    "dp": "all data-parallel ranks",
    "dp_shard_cp": "ranks over which FSDP2 shards: data parallel and the sequence",
    "dp_cp": "ranks over which Megatron reduces gradients of dense parameters",
    "expert_dp": "ranks of a stage that hold the same experts (Automodel: `ep_shard`)",
    "expert_dp_shard": "those within a replica of the model (torchtitan: `efsdp`)",
    "expert_dp_replicate": "copies of that, with several optimizer instances, or of replicas of the model",
    "world": "all ranks",
}
"""Descriptions of the axes that no scenario sets; those of the others are the scenario schema's."""

COMPONENTS: Final = {
    "embedding": "token embedding and learned positions; a tied head counts here",
    "attention": "query, key, value and output projections",
    "mamba": "Mamba-2 mixers, their norm included",
    "delta_net": "gated delta nets (linear attention), their norm included",
    "mlp": "dense feed-forward layers",
    "layer_inputs": "what makes inputs of single layers (Gemma 4 E2B and E4B): table, projection and norm",
    "routed_experts": "experts that tokens are routed to",
    "shared_experts": "experts that every token visits",
    "latent_projections": "projections to the routed experts' width and back",
    "router": "the router's weight; its correction bias is a buffer, in no component",
    "residual_streams": "what mixes the residual streams of DeepSeek-V4",
    "norms": "norms of layers, heads and latent vectors, and the final norm",
    "sound_tower": "convolutions and layers of a tower of sound",
    "vision_tower": "patches, layers and norm of a vision tower", "projector": "from the tower's width to the text's",
    "lm_head": "output head, unless tied",
    "mtp": "modules of multi-token prediction, everything in them (under `automodel` but routed experts)",
    "adapters": "LoRA pairs outside routed experts", "expert_adapters": "LoRA pairs of routed experts",
}

CATEGORIES: Final = {
    "sharded_param": "parameters as they rest on the rank",
    "ignored_param": "parameters that the framework's sharding leaves alone (local experts)",
    "main_param": "masters beside 16-bit parameters",
    "main_grad": "gradient buffers that survive the step", "opt_state": "moments",
    "buffer": "tensors that are no parameters: rotary frequencies, the router's correction bias",
    "all_gather_cast_input": "the shard, cast for the all-gather",
    "all_gather_output": "flat buffer that an all-gather fills",
    "unsharded_param": "whole parameters, copied out of it, while they are used",
    "post_forward_shard": "the larger shard that is kept between forward and backward",
    "unsharded_grad": "whole gradients, as an operator made them or summed over microbatches",
    "reduce_scatter_input": "flat copy of whole gradients",
    "reduce_scatter_output": "the reduced shard, where it does not become the gradient itself",
    "sharded_grad": "reduced gradients, until `zero_grad`",
    "ignored_grad": "gradients of parameters that the framework's sharding leaves alone",
    "optim_temp": "what the optimizer's step needs for a moment",
    "activation": "what forward allocates: for a moment, or kept for backward",
    "recompute": "what a checkpoint's replay allocates",
    "backward_temp": "what backward allocates beside parameter gradients",
    "dispatcher": "buffers of the token dispatcher",
    "workspace": "what a library or an operator keeps for itself from one step to the next",
    "input": "token ids and labels of a microbatch",
}
OUTSIDE: Final = ("context", "nccl", "dispatcher", "workspace")  # of a peak's `outside`
SERVED: Final = ("kv_cache", "graph_pool", "fragmentation")  # of an engine that generates; of phases

_PHASES: Final = {
    Phase.BUILD: "before the step: what rests; not in reports",
    Phase.FORWARD: "forward passes of all microbatches",
    Phase.LOSS: "the loss of a forward pass",
    Phase.BACKWARD: "backward passes",
    Phase.RECOMPUTE: "a checkpoint's replay inside backward",
    Phase.OPTIMIZER: "the step, until gradients are dropped",
}
_PAYLOADS: Final = {"all_gather": "full gathered output", "reduce_scatter": "full input", "all_reduce": "buffer",
                    "all_to_all": "buffer", "send_recv": "message"}  # fmt: skip

_UNIT, _LAYER = "UNIT", "LAYER"
_BEGIN, _END = "<!-- made by `python -m simcore.docgen.glossary` from here -->", "<!-- to here -->"


# ---- tables ----------------------------------------------------------------------------------------------------------
def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Text of a Markdown table with the column heads `head`; each row has as many cells, `|` is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def glossary() -> str:
    """Markdown text of `docs/glossary.md`."""
    head = ("# Glossary\n\nMade by `python -m simcore.docgen.glossary` from the code's own tables; edit those, not "
            "this page.")
    parts = (_axes(), _components(), _categories(), _phases(), _collectives(), _ops(), _streams(), _moments(),
             _placements(), _events())
    return "\n\n".join((head, *(f"## {title}\n\n{text}" for title, text in parts))) + "\n"


def _axes() -> tuple[str, str]:
    descriptions = {name: _lower(str(field.description)) for name, field in Degrees.model_fields.items()} | AXES
    rows = [(f"`{name}`", f"`{size}`", f"`{stride}`", descriptions[name]) for name, size, stride in _digits()]
    note = ("An axis is a digit of the rank: `rank // stride % size`. `NAME/4` is a part of an axis: groups of 4 "
            "neighbours on it.")
    return "Mesh axes", f"{note}\n\n{table(('axis', 'size', 'stride', 'is'), rows)}"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _digits() -> Iterator[tuple[str, str, str]]:
    """(axis, size, stride) of every axis, as they are written in the source of `Mesh.digit`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(Mesh.digit)))
    digits = next(node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    for key, value in zip(digits.keys, digits.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(value, ast.Tuple)
        size, stride = (ast.unparse(part).replace("self.", "") for part in value.elts)
        yield str(key.value), size, stride


def _components() -> tuple[str, str]:
    return "Components", table(("component", "holds"), [(f"`{name}`", what) for name, what in COMPONENTS.items()])


def _categories() -> tuple[str, str]:
    rows = [(f"`{name}`", what) for name, what in CATEGORIES.items()]
    outside, served = (", ".join(f"`{name}`" for name in names) for names in (OUTSIDE, SERVED))
    return ("Categories of bytes", f"{table(('category', 'is'), rows)}\n\nBeside what is allocated: {outside}. "
            f"Of engines that generate, and of phases (what an allocator cannot fit together): {served}.")


def _phases() -> tuple[str, str]:
    note = ("Traffic counts the loss as forward; the peak of `backward` includes `recompute`. Hosts have others:"
            " `load` (the model is read), `first_step` and `save` (it is written).")
    rows = [(f"`{phase.name.lower()}`", what) for phase, what in _PHASES.items()]
    parts = table(("part", "is"), [(f"`{name}`", what) for name, what in PARTS.items()])
    more = table(("part", "is"), [(f"`{name}`", what) for name, what in PHASE_PARTS.items()])
    return "Phases", (f"{table(('phase', 'is'), rows)}\n\n{note}\n\nParts of `time`, which add up to it:\n\n{parts}\n\n"
                      f"Further parts of a step with phases, as of GRPO:\n\n{more}")


def _collectives() -> tuple[str, str]:
    rows = [(f"`{name}`", _PAYLOADS.get(name, "not sent by any program yet")) for name in COLLECTIVES]
    return "Collectives", table(("collective", "`payload_bytes` is the"), rows)


def _ops() -> tuple[str, str]:
    rows = [(f"`{name}`", what) for name, what in _commented(Op)]
    kernels = ", ".join(f"`{kernel.name.lower()}`" for kernel in Kernel)
    return ("Op kinds", f"Kinds of rows of a program. Kernels of `COMPUTE`: {kernels}.\n\n"
            f"{table(('op', 'columns'), rows)}")


def _commented(enum: type[Enum]) -> Iterator[tuple[str, str]]:
    """(name, trailing comment) of every member of an enumeration."""
    for line in inspect.getsource(enum).splitlines():
        member = re.fullmatch(r"\s+([A-Z_]+) = \d+(?:\s+# (.*))?", line)
        if member:
            yield member[1], member[2] or ""


def _streams() -> tuple[str, str]:
    names = ", ".join(f"`{stream.name.lower()}`" for stream in Stream)
    return "Streams", f"{inspect.getdoc(Stream)} They are {names}."


def _moments() -> tuple[str, str]:
    note = "When the optimizer updates the tensors of a `TensorPolicy`."
    return "Update times", f"{note}\n\n{table(('time', 'is'), [(f'`{m.name}`', m.value) for m in UpdateTime])}"


def _placements() -> tuple[str, str]:
    rows = [(f"`{_signature(kind)}`", " ".join((inspect.getdoc(kind) or "").split())) for kind in get_args(Placement)]
    return "Placements", f"How a tensor lies on one axis of its `TensorLayout`.\n\n{table(('placement', 'is'), rows)}"


def _signature(kind: type) -> str:
    return f"{kind.__name__}{inspect.signature(kind)}".replace("'", "").removesuffix(" -> None").replace("()", "")


# ---- events ----------------------------------------------------------------------------------------------------------
def _events() -> tuple[str, str]:
    note = (f"The last hook passed before a moment, here all those of an FSDP2 job. `{_UNIT}` is a unit's name as "
            f"upstream prints it (`root`, `model.layers.3`), `{_LAYER}` a layer's path. `grads=0`: the unit has no "
            "gradients. Before the first hook the event is `build`.")
    return "Events", "\n".join((note, "", *(f"- `{event}`" for event in events())))


def events() -> tuple[str, ...]:
    """Names of the hooks of a small FSDP2 job, as in reports, in the order in which each first runs.

    UNIT stands for a unit's name, LAYER for a layer's path.
    """
    program = _sample()
    hooks, columns = list(program.tables.hooks), program.columns
    passed = (hooks[hook] for hook in columns[columns[:, OP] == Op.MARK, SLOT].tolist())
    return tuple(dict.fromkeys(_event(hook) for hook in passed))


def _event(hook: str) -> str:
    return f"{hook}:{_LAYER}" if hook.startswith("bwd:recompute") else hook.format(_UNIT)


def _sample() -> Program:
    """Program of a job that passes every hook: experts in a separate unit, checkpoints, two microbatches."""
    scenario = {"name": "events", "model": "nemotron-3-tiny", "framework": "fsdp2", "topology": "dgx-h100",
             "mesh": {"dp_shard": 4, "ep": 2},
             "training": {"seq_len": 128, "global_batch_size": 8, "recompute": "full"}}
    job, framework = prepare(parse_scenario(parse_document(json.dumps(scenario), "events")))
    plan = place(job.graph, job.mesh, framework, 0)
    return lower(plan, Workload(1, 128, 1 << 16), actions(framework.schedule, 0, 2), hooks_of(framework))


def scenario_keys() -> str:
    """Markdown tables of every key of a scenario file (allowed values, meaning of its absence, description).

    The second one is of keys without effect.
    """
    found = table(("key", "value", "left out", "what it says"), list(key_rows()))
    idle = table(("accepted, without effect", "where", "why"), list(idle_rows()))
    return f"{found}\n\nEvery other key changes a number where it is accepted, or is refused.\n\n{idle}"


def filled(page: str) -> str:
    """`page` with the table of keys in the place of all text between its two marker comments.

    AssertionError if the page lacks them.
    """
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    assert after, f"expected the lines {_BEGIN} and {_END}"
    return f"{before}{_BEGIN}\n\n{scenario_keys()}\n\n{_END}{after}"


def main(pages: Sequence[str]) -> None:
    """Prints the glossary; with paths of `pages`, fills the table of keys into these files instead."""
    for page in map(Path, pages):
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    if not pages:
        sys.stdout.write(glossary())


if __name__ == "__main__":
    main(sys.argv[1:])
