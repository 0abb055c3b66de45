"""GPUs of a recipe: those that train, those that only generate, and those that only teach."""

from __future__ import annotations

from typing import Final

from simcore.errors import InputError
from simcore.hardware.topology import load_topology, topology_names
from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader

__all__ = ["read_cluster"]

_SETUP: Final = "algorithms/grpo.py setup"
_DISTILLATION: Final = "on_policy_distillation"
_TEACHERS: Final = f"{_DISTILLATION}.non_colocated_teachers"


def read_cluster(reader: Reader, draft: Draft, engine_gpus: int) -> Answer | None:
    """Writes the machine, and returns the number of GPUs that train; None if it is not known.

    `engine_gpus`: GPUs that only generate, 0 where engines share those that train. `--gpus` counts all.
    """
    read_machine(draft, None)
    each, nodes = reader.integer("cluster.gpus_per_node"), reader.integer("cluster.num_nodes")
    total = draft.answers.gpus
    if total is not None:
        draft.idle([one for one in (each, nodes) if one], f"{total.where} says how many GPUs there are")
    elif each is None:
        draft.ask("mesh.dp_shard", "--gpus N", "number of GPUs (cluster)", nodes)
        return None
    else:
        total = Answer(each.value * (nodes.value if nodes else 1), each.where)
        draft.use(each, nodes, why="the number of GPUs follows from it")
        if nodes is not None and nodes.value > 1:
            _narrow(draft, each.value, each.where)
    teaching = _teaching_nodes(reader) * (each.value if each else 0)
    if engine_gpus + teaching >= total.value:
        teach = f" and {teaching} teach" if teaching else ""
        draft.fail(total.where, f"{total.value} GPUs, of which {engine_gpus} generate{teach}: none is left to train "
                                f"({_SETUP})")
        return None
    return Answer(total.value - engine_gpus - teaching, total.where)


def _teaching_nodes(reader: Reader) -> int:
    """Number of nodes with teachers of GRPO alone, one group a model; `step` refuses such distillation.

    NeMo RL 7ea279ab models/policy/teacher_worker_group.py create_teacher_configs_from_opd_config.
    """
    if not all(reader.look(f"{at}.enabled") is True for at in (_DISTILLATION, _TEACHERS)):
        return 0
    by_name = f"{_DISTILLATION}.teacher_model_by_agent_name"
    names = reader.names(by_name)
    if reader.look(f"{_DISTILLATION}.deduplicate_shared_teacher_checkpoints") is not False:
        names = tuple({str(reader.look(f"{by_name}.{name}")): name for name in reversed(names)}.values())
    told = ((reader.look(f"{_TEACHERS}.{at}.num_nodes") for at in (f"teacher_overrides.{name}", "default_teacher_cfg"))
            for name in names)
    return sum(next((nodes for nodes in each if isinstance(nodes, int)), 1) for each in told)



def _narrow(draft: Draft, each: int, where: str) -> None:
    """Writes the GPUs of a node where they are fewer than a host of the machine has.

    Hosts of an NVLink domain of several (GB200 NVL72) have 4 GPUs, and `gpus_per_node` of a recipe counts those.
    """
    name = draft.values.get("topology")
    if not isinstance(name, str) or name not in topology_names():
        return
    try:
        host = load_topology(name).gpus_per_host
    except InputError:
        return
    if each < host:
        draft.answered("topology", draft.answers.topology or Answer(name, where), {"file": name, "gpus_per_node": each})
