"""mbridge's own export of Megatron's parameters on a CPU: most bytes that are alive at once beside the parameters.

    python tests/truth/probe_mbridge.py MBRIDGE > tests/truth/mbridge/0.15.1.json

`MBRIDGE`: folder of the wheel's package. `export_weights` and the methods that it calls are taken out of their file by
name, so that Megatron is not imported: parameters are torch's, collectives move nothing, and a stage without a
parameter receives it. The rank is one that owns no stage if there are several.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

BRIDGE = Path(sys.argv[1]) / "core/bridge.py"
METHODS = ("export_weights", "_weight_to_hf_format", "_weight_merge_across_tp")
HEADS, KV, DIM = 8, 2, 4


class Alive(TorchDispatchMode):
    """Counts bytes of storages that operators make, while they are alive; not those of `params`."""

    def __init__(self, params: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.own = {one.untyped_storage()._cdata for one in params}
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.highest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in self.own:
                storage = one.untyped_storage()
                self.made.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.look()
        return found

    def look(self) -> None:
        """Forgets what is freed, and keeps the most."""
        self.made = {key: pair for key, pair in self.made.items() if not pair[0].expired()}
        self.highest = max(self.highest, sum(size for _, size in self.made.values()))


def bridge(given: dict[str, Any]) -> Any:
    """A bridge with mbridge's own methods, which sees `given`."""
    tree = ast.parse(BRIDGE.read_text(encoding="utf-8"))
    kind = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Bridge")
    body: list[ast.stmt] = [node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name in METHODS]
    names: dict[str, Any] = {"torch": given["torch"], "Generator": Generator, **given}
    exec(compile(ast.Module(body, []), str(BRIDGE), "exec"), names)  # noqa: S102 - upstream's own code
    return type("Bridge", (), {name: names[name] for name in METHODS})()


def shapes(hidden: int, ffn: int, vocab: int, layers: int, experts: int, tp: int) -> Iterator[tuple[str, Any, int]]:
    """Names, shapes of a rank's part and the dimension that is cut (-1: none), of all stages."""
    yield "embedding.word_embeddings.weight", (vocab // tp, hidden), 0
    for layer in range(layers):
        at = f"decoder.layers.{layer}."
        yield f"{at}self_attention.linear_proj.weight", (hidden, HEADS * DIM // tp), 1
        yield f"{at}self_attention.linear_qkv.layer_norm_weight", (hidden,), -1
        yield f"{at}self_attention.linear_qkv.weight", ((HEADS + 2 * KV) * DIM // tp, hidden), 0
        for expert in range(experts):
            yield f"{at}mlp.experts.linear_fc1.weight{expert}", (2 * ffn, hidden), -1
        for expert in range(experts):
            yield f"{at}mlp.experts.linear_fc2.weight{expert}", (hidden, ffn), -1
        if not experts:
            yield f"{at}mlp.linear_fc1.weight", (2 * ffn // tp, hidden), 0
            yield f"{at}mlp.linear_fc2.weight", (hidden, ffn // tp), 1
    yield "decoder.final_layernorm.weight", (hidden,), -1
    yield "output_layer.weight", (vocab // tp, hidden), 0


def measured(hidden: int, ffn: int, vocab: int, layers: int, experts: int, tp: int, pp: int, ep: int) -> dict[str, Any]:
    """The most bytes beside parameters, in 2-byte elements."""
    found = list(shapes(hidden, ffn, vocab, layers, experts // ep if experts else 0, tp))
    params = {}
    for name, shape, dim in found:
        params[name] = torch.zeros(shape, dtype=torch.bfloat16)
        params[name].tensor_model_parallel, params[name].partition_dim = dim >= 0, dim
    queue = iter(found)

    def broadcast(param: Any) -> Any:
        name = next(queue)[0]
        if param is not None:
            return param
        received = torch.empty_like(params[name])
        received.tensor_model_parallel = params[name].tensor_model_parallel
        received.partition_dim = params[name].partition_dim
        return received

    owner = 1 if pp > 1 else 0

    def gather_names(object_list: list[Any], obj: Any, group: Any) -> None:
        object_list[:] = [[(owner, 0, name) for name, _, _ in found]]

    names = iter([name for name, _, _ in found])
    fake = SimpleNamespace(
        Tensor=torch.Tensor, cat=torch.cat, empty_like=torch.empty_like, nn=torch.nn, cuda=torch.cuda,
        distributed=SimpleNamespace(all_gather_object=gather_names, all_gather=lambda *_, **__: None))
    made = bridge({"torch": fake, "unwrap_model": lambda model: model, "broadcast_from_megatron_pp": broadcast,
                   "broadcast_str_from_megatron_pp": lambda name: next(names)})
    made.mpu = SimpleNamespace(pp_rank=0, pp_size=1, pp_group=None, tp_size=tp, tp_group=None, ep_size=ep,
                               ep_group=None, etp_size=1, etp_group=None)
    made.config = SimpleNamespace(num_moe_experts=experts, gated_linear_unit=True)
    made.hf_config = SimpleNamespace(num_key_value_heads=KV, hidden_size=hidden, num_attention_heads=HEADS,
                                     head_dim=DIM)
    made.make_vocab_size_divisible_by = None
    made._get_mcore_config_by_name = lambda name: made.config
    made._weight_name_mapping_mcore_local_to_global = lambda model, consider_ep: {name: name for name in params}
    made._weight_name_mapping_mcore_to_hf = lambda name: [name] * (
        3 if "linear_qkv.weight" in name else 2 if "linear_fc1" in name else 1)
    model = SimpleNamespace(named_parameters=lambda: iter(params.items()), state_dict=dict)
    with Alive(params.values()) as alive:
        for name, weight in made.export_weights([model]):
            assert weight.numel(), name
            del weight
    return {"hidden": hidden, "ffn": ffn, "vocab": vocab, "layers": layers, "experts": experts, "tp": tp, "pp": pp,
            "ep": ep, "highest": alive.highest}


json.dump({"heads": HEADS, "kv": KV, "dim": DIM, "cases": [measured(*case) for case in (
    (32, 64, 40, 2, 0, 1, 1, 1), (32, 64, 40, 2, 0, 2, 1, 1), (32, 64, 40, 2, 0, 2, 2, 1), (32, 64, 40, 2, 0, 1, 2, 1),
    (32, 64, 4000, 2, 0, 2, 2, 1), (32, 8, 8, 2, 0, 2, 1, 1), (32, 64, 40, 2, 4, 1, 1, 2), (32, 512, 40, 2, 4, 2, 1, 4),
    (32, 512, 40, 2, 4, 2, 2, 2))]}, sys.stdout)
