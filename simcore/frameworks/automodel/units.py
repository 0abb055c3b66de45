"""NeMo Automodel's FSDP2 units; see [Note: Automodel's two paths] in `table.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from simcore.frameworks.automodel.policies import is_older, ties_again, trains_policies
from simcore.models.blocks import Mtp
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import VisionPart
from simcore.operators.automodel.tensors import layer_of, layers_of_further
from simcore.placement.framework import Inner, Unit, inner_of
from simcore.placement.job import Draft, Job

__all__ = ["is_sharded", "units"]

_DEFAULT_RESHARD = (
    ("true for layers, false for the root", "0.7.0 distributed/config.py:341: None, torch's default"),
    ("false", "0.7.0 distributed/config.py:198 MoEParallelizerConfig.reshard_after_forward"),
)


def is_sharded(job: Job) -> bool:
    """True if the job has several ranks; with one, `fully_shard` wraps nothing.

    Over tp or stages alone it wraps groups of one rank. 0.7.0 distributed/fsdp2.py:44, fsdp2_sharding_enabled. The
    older worker of NeMo RL wraps one rank too (`models/dtensor/parallelize.py:737`).
    """
    return is_older(job) or job.mesh.size > 1


Stages = tuple[tuple[int, ...], ...]
Choose = Callable[[TensorSpec], bool]


@dataclass(frozen=True, slots=True)
class _Wrapping:
    """`asked`: whether units reshard after forward, if anyone said so. `experts_dp`: ranks that share an expert.

    `holds_fp32`: parameters in fp32 are a unit of their own. `whole_root`: embedding and head are the root's without
    expert parallelism. `gathers_tied`: so is a tied head, beside the embedding's table.
    """

    asked: bool | None
    splits_experts: bool
    experts_dp: int
    replicate: str
    compute: str
    reduce: str
    holds_fp32: bool
    whole_root: bool
    gathers_tied: bool = False


def units(job: Draft, stages: Stages, options: dict[str, object], reduce: str, *, holds_fp32: bool) -> tuple[Unit, ...]:
    """Returns the FSDP2 units of every pipeline stage, stage by stage: the root, then the parts from outside inwards.

    Empty if `fully_shard` wraps nothing (`is_sharded`). `stages`: layer numbers, in the whole model, of each stage or
    chunk. `options`: the framework options that the scenario sets, by name. `reduce`: dtype in which gradients are
    reduced. `holds_fp32`: parameters stored in fp32 are a separate unit in each layer.
    """
    if not is_sharded(job):
        return ()
    mesh = job.mesh
    replicate = "dp_replicate" if mesh.dp_replicate > 1 else ""
    asked = True if is_older(job) else _asked(job, options)
    return _units(job.graph, stages, _Wrapping(asked, mesh.ep > 1, mesh.expert_dp, replicate, job.compute, reduce,
                                               holds_fp32, trains_policies(job), ties_again(job)))


def _asked(job: Draft, options: dict[str, object]) -> bool | None:
    asked = options.get("reshard_after_forward")
    if asked is None and job.mesh.ep > 1:
        asked = options.get("moe.reshard_after_forward")
    if isinstance(asked, bool):
        return asked
    job.auto("framework_options.reshard_after_forward", "auto", *_DEFAULT_RESHARD[job.mesh.ep > 1])
    return None


@lru_cache(maxsize=256)
def _units(graph: ModelGraph, stages: Stages, wrapping: _Wrapping) -> tuple[Unit, ...]:
    maker = _Maker(graph, wrapping)
    path = maker.expert_parallel if wrapping.splits_experts else maker.dense
    return tuple(unit for stage in stages for unit in path(stage))


def _is_routed(spec: TensorSpec) -> bool:
    return spec.component in ("routed_experts", "expert_adapters")


def _is_unrouted(spec: TensorSpec) -> bool:
    return not _is_routed(spec)


def _is_fp32(spec: TensorSpec) -> bool:
    return spec.stored == "fp32"


def _is_plain(spec: TensorSpec) -> bool:
    return not _is_fp32(spec)


def _is_plain_unrouted(spec: TensorSpec) -> bool:
    return not _is_fp32(spec) and not _is_routed(spec)


_CHOOSES: dict[tuple[bool, bool], Choose | None] = {
    (True, True): _is_plain_unrouted, (True, False): _is_plain, (False, True): _is_unrouted, (False, False): None}
"""Choice of the parameters of a layer's unit, by (fp32 parameters are separate, routed experts are)."""


def _module_of(path: str) -> str:
    """The tower, or the projector beside it, of a part of a model that reads images."""
    return ".".join(path.split(".")[:2])


class _Maker:
    def __init__(self, graph: ModelGraph, wrapping: _Wrapping) -> None:
        self.graph, self.wrapping = graph, wrapping
        self.asked = wrapping.asked
        self.at_rest = tuple(f"{path}." for path, _ in graph.architecture.resting)
        self.known: dict[tuple[int, Choose | None], tuple[int, ...]] = {}

    def expert_parallel(self, stage: tuple[int, ...]) -> list[Unit]:
        """Returns the units with ep > 1: by default none reshards; the outer model has a frozen tower, if any.

        One that is trained, or has adapters, is a unit, and so is a projector beside it; that of a tower at rest is
        never gathered, and a frozen one is the root's all the same (0.7.0 moe/parallelizer.py:1034, apply_fsdp;
        models/qwen3_5_moe/model.py:632).
        """
        reshard, text = bool(self.asked), self._text()
        kinds = {layer: self._kind(layer) for layer in stage}
        seeing = [layer for layer in stage if isinstance(self._block_of(layer), VisionPart)]
        trained = self._trained_modules(seeing)
        frozen = [layer for layer in seeing if not any(layer in layers for layers in trained.values())]
        blocks = [layer for layer in stage if kinds[layer] not in ("embedding", "final_norm", "head", "loss")
                  and layer not in seeing]
        norms = [layer for layer in stage if kinds[layer] == "final_norm"]
        end = next((layer for layer in stage if kinds[layer] == "head"), blocks[-1])
        out = [self._unit("root", frozen, stage[0], end, reshard=False, is_root=True) if frozen else
               Unit("", (), stage[0], end, "dp_shard_cp", is_root=True, reshard_after_forward=False)]
        out += [self._unit(name, layers, layers[0], layers[-1], reshard=reshard) for name, layers in trained.items()]
        if self.at_rest and kinds[stage[0]] == "embedding":
            towers = [self._unit(path, [stage[0]], stage[0], end, reshard=False, choose=lambda t, path=path:
                                 t.name.startswith(f"{path}.")) for path in self._modules_at_rest()]  # type: ignore[misc]
            whole = self._unit("root", [stage[0]], stage[0], end, reshard=False, choose=self._rests)
            out = [*out, *(replace(tower, rests=True) for tower in towers)] if self._trains_at_rest(
                self.at_rest) else [replace(whole, is_root=True)]
        if norms:
            inner = blocks[0] if seeing else stage[0]  # called behind the embedding and the tower
            out.append(self._unit(text, norms, inner, norms[-1], reshard=reshard, choose=_is_plain))
            out += self._modules_in_fp32(norms[-1], "", reshard=reshard)
        if kinds[stage[0]] == "embedding":
            inside = self.graph.layers[stage[0]].path.rpartition(".")[0]
            out.append(self._unit(f"{inside}.embed_tokens", [stage[0]], stage[0], stage[0], reshard=reshard,
                                  choose=self._runs if self.at_rest else None))
        for layer in blocks:
            out += self._block(layer, reshard=reshard, separate_experts=True)
        out += [self._unit(self.graph.layers[layer].path, [layer], layer, self._last_use(stage, layer),
                           reshard=reshard, dtype=self._stored(layer)) for layer in stage if kinds[layer] == "head"]
        return [unit for unit in out if unit.members or unit.is_root]

    def _trained_modules(self, seeing: list[int]) -> dict[str, list[int]]:
        """Layers of each module of a tower of the parts `seeing`, or its projector, in which something is trained."""
        modules: dict[str, list[int]] = {}
        for layer in seeing:
            modules.setdefault(_module_of(self.graph.layers[layer].path), []).append(layer)
        return {name: layers for name, layers in modules.items() if any(map(self._trains, layers))}

    def _modules_at_rest(self) -> tuple[str, ...]:
        """Paths of the modules of a resting tower: the tower, and the projector where it is beside it."""
        return tuple(dict.fromkeys(map(_module_of, self.at_rest)))

    def _rests(self, spec: TensorSpec) -> bool:
        return spec.rests

    def _runs(self, spec: TensorSpec) -> bool:
        return not spec.rests

    def _root(self, rest: list[int], used: tuple[int, int], *, embeds: bool) -> list[Unit]:
        """The root of dense layers, and units of lists of a resting tower; `embeds`: the embedding is a unit itself."""
        if not self.at_rest:
            return [self._unit("root", rest, *used, reshard=False, is_root=True)]
        lists = self._lists_at_rest()
        out = [self._unit("root", rest, *used, reshard=False, is_root=True, choose=self._in_root(lists, embeds=embeds))]
        return out + [replace(self._unit(path[:-1], [0], 0, 0, reshard=True, choose=lambda t, path=path:
                                         t.name.startswith(path)), rests=True) for path in lists]  # type: ignore[misc]

    def _lists_at_rest(self) -> tuple[str, ...]:
        """Paths, with a dot at the end, of layers in lists of a tower that is given no images, unless it is frozen.

        NeMo RL's pin wraps those of a frozen one too (24b47e856 distributed/parallelizer.py
        apply_fsdp2_sharding_recursively).
        """
        listed = tuple(path for path in self.at_rest if path[:-1].rpartition(".")[2].isdigit())
        return listed if self.wrapping.whole_root or self._trains_at_rest(listed) else ()

    def _in_root(self, lists: tuple[str, ...], *, embeds: bool) -> Choose:
        """Choice of what the root has beside a resting tower's lists; `embeds`: not the embedding, a unit itself."""
        def choose(spec: TensorSpec) -> bool:
            embedding = spec.module == "embedding" and not spec.rests
            return not (lists and spec.name.startswith(lists)) and not (embeds and embedding)
        return choose

    def _trains_at_rest(self, paths: tuple[str, ...]) -> bool:
        """True if something in the modules `paths`, with a dot at the end, has gradients switched on, though it rests.

        Beside adapters only they have.
        """
        kinds = dict.fromkeys(layer.kind for layer in self.graph.layers)
        adapters = any(spec.module == "adapter" for kind in kinds for spec in self.graph.tensors[kind])
        return bool(paths) and any(
            spec.rests and not spec.is_buffer and not spec.frozen and spec.name.startswith(paths)
            and (not adapters or spec.module == "adapter") for kind in kinds for spec in self.graph.tensors[kind])

    def dense(self, stage: tuple[int, ...]) -> list[Unit]:
        """Returns the units with ep = 1: layers reshard; embedding and head are units only if they train.

        The root has all other tensors.

        A frozen vision tower is among them (0.7.0 distributed/config.py: multimodal.frozen_sharding is root), and of a
        trained one what is in no list. 0.7.0 distributed/parallelizer.py, `ModelParallelizer`: tied tables stay with
        the root (_fully_shard_untied_input_output_embeddings), the last layer of a list reshards only where it is asked
        for (apply_fsdp2_sharding_recursively). Nemotron-H has a separate parallelizer.
        """
        children = True if self.asked is None else self.asked
        generic = self.graph.architecture.family != "nemotron_h"
        apart = not (generic and self.graph.has_tied_head) and not self.wrapping.whole_root
        rest, own, further, blocks, listed = [], [], list[int](), list[int](), self._lists_of_tower(stage)
        for layer in (one for one in stage if one not in listed):
            kind = self._kind(layer)
            if kind in ("embedding", "head") and apart and self._trains(layer):
                own.append((layer, children if kind == "embedding" else False))
                rest += [layer] * bool(kind == "embedding" and self.at_rest)  # with what it has of a resting tower
            elif kind in ("embedding", "final_norm", "head") or isinstance(self._block_of(layer), VisionPart):
                rest.append(layer)
            elif isinstance(self._block_of(layer), Mtp):
                (further if generic else rest).append(layer)
            elif kind != "loss":
                blocks.append(layer)
        end = next((layer for layer in stage if self._kind(layer) == "head"), blocks[-1])
        embeds = any(layer == stage[0] for layer, _ in own)
        out = self._root(rest, (stage[0], self._last_use(stage, end)), embeds=embeds)
        inside = "language_model." * bool(self.graph.architecture.has_tower or self.at_rest)
        names = {"embedding": f"model.{inside}embed_tokens", "head": "lm_head"}
        out += [self._unit(names[self._kind(layer)], [layer], layer, layer if policy else self._last_use(stage, layer),
                           reshard=policy, choose=self._runs if self.at_rest else None) for layer, policy in own]
        out += [self._unit(self.graph.layers[layer].path, [layer], layer, layer, reshard=reshard)
                for layer, reshard in listed.items()]
        for layer in blocks:
            kept = generic and layer == blocks[-1] and self.asked is None
            out += self._block(layer, reshard=not kept and children, separate_experts=False)
        for layer in further:  # a list of one: the last of it
            out += self._further(layer, reshard=bool(self.asked))
        return out

    def _lists_of_tower(self, stage: tuple[int, ...]) -> dict[int, bool]:
        """Layers in lists of a tower that is not frozen as a whole, True for those that reshard: not a list's last."""
        paths = {layer: self.graph.layers[layer].path for layer in stage
                 if isinstance(self._block_of(layer), VisionPart)}
        lists = {layer: path.rpartition(".")[0] for layer, path in paths.items() if path[-1].isdigit()}
        if not any(map(self._trains, lists)):
            return {}
        last = {path: layer for layer, path in lists.items()}
        return {layer: last[path] != layer if self.asked is None else self.asked for layer, path in lists.items()}

    def _text(self) -> str:
        """Name of the module that holds the decoder's layers."""
        architecture = self.graph.architecture
        if not architecture.has_tower and not architecture.resting:
            return "model"
        return "language_model.model" if architecture.decoder == "nemotron_h" else "model.language_model"

    def _last_use(self, stage: tuple[int, ...], layer: int) -> int:
        """Number of the last layer of the stage that runs the head: a module of multi-token prediction, if any."""
        return max((further for further in stage if isinstance(self._block_of(further), Mtp)), default=layer)

    def _further(self, layer: int, *, reshard: bool) -> list[Unit]:
        """Units of a module of multi-token prediction, whose experts stay gathered (0.7.0 moe/parallelizer.py)."""
        found = []
        for place, branches in enumerate(layers_of_further(self.graph.kinds[self.graph.layers[layer].kind])):
            at, branch = layer_of(place), branches[-1]
            found.append(self._unit(at[:-1], [layer], layer, layer, reshard=reshard, explicit=True,
                                    choose=lambda t, at=at: t.name.startswith(at) and _is_unrouted(t)))  # type: ignore[misc]
            if self.wrapping.experts_dp > 1:
                found.append(self._unit(f"{at}{branch.name}.experts", [layer], layer, layer, reshard=False,
                                        inner="experts",
                                        choose=lambda t, at=at: t.name.startswith(at) and _is_routed(t)))  # type: ignore[misc]
        return [unit for unit in found if unit.members]

    def _block(self, layer: int, *, reshard: bool, separate_experts: bool) -> list[Unit]:
        if isinstance(self._block_of(layer), Mtp):
            return self._further(layer, reshard=reshard)
        path = self.graph.layers[layer].path
        mixer = self.graph.kinds[self.graph.layers[layer].kind].branches[-1].name
        choose = _CHOOSES[self.wrapping.holds_fp32, separate_experts]
        found = [self._unit(path, [layer], layer, layer, reshard=reshard, choose=choose, explicit=True)]
        if self.wrapping.holds_fp32 and self.graph.kinds[self.graph.layers[layer].kind].streams:
            found += self._modules_in_fp32(layer, f"{path}.", reshard=reshard)
        elif self.wrapping.holds_fp32:
            found.append(self._unit(f"{path}.{self._fp32_module(layer)}", [layer], layer, layer, reshard=reshard,
                                    choose=_is_fp32, dtype="fp32", inner="fp32"))
        if separate_experts and self.wrapping.experts_dp > 1:
            found.append(self._unit(f"{path}.{mixer}.experts", [layer], layer, layer, reshard=reshard,
                                    choose=_is_routed, inner="experts"))
        return [unit for unit in found if unit.members]

    def _modules_in_fp32(self, layer: int, path: str, *, reshard: bool) -> list[Unit]:
        """Units of each module with parameters in fp32 alone; `path`: of the layer, with a dot behind.

        0.7.0 `models/deepseek_v4/fsdp.py`, fully_shard_deepseek_v4; one that returns its parameter never reshards.
        """
        specs = self.graph.tensors[self.graph.layers[layer].kind]
        modules = dict.fromkeys(spec.path for spec in specs if spec.is_owned and _is_fp32(spec))
        return [self._unit(f"{path}{module}", [layer], layer, layer, dtype="fp32", inner=inner_of(module),
                           reshard=reshard and not module.endswith("_param"),
                           choose=lambda t, module=module: _is_fp32(t) and t.path == module)  # type: ignore[misc]
                for module in modules]

    def _fp32_module(self, layer: int) -> str:
        """Largest module of the layer with fp32 parameters alone, routed experts aside; "" for a layer without any.

        0.7.0 `parallelizer_utils.py`, fully_shard_by_dtype: that of a router's gate is the whole block of experts.
        """
        specs = self.graph.tensors[self.graph.layers[layer].kind]
        found = next((spec.path for spec in specs if spec.is_owned and _is_fp32(spec)), "")
        return found.removesuffix(".gate")

    def _unit(self, name: str, layers: list[int], first: int, last: int, *, reshard: bool, choose: Choose | None = None,
              dtype: str = "", inner: Inner = "", is_root: bool = False, explicit: bool = False) -> Unit:
        members = tuple((layer, self._numbers(layer, choose)) for layer in layers)
        axis, replicate = ("expert_dp", "") if inner == "experts" else ("dp_shard_cp", self.wrapping.replicate)
        gathered = dtype or self.wrapping.compute
        return Unit(name, tuple(m for m in members if m[1]), first, last, axis, replicate, reshard, inner, is_root,
                    explicit, param_dtype=gathered, reduce_dtype=dtype or self.wrapping.reduce, gather_dtype=gathered)

    def _numbers(self, layer: int, choose: Choose | None) -> tuple[int, ...]:
        kind = self.graph.layers[layer].kind
        if (kind, choose) not in self.known:
            specs = self.graph.tensors[kind]
            self.known[kind, choose] = tuple(i for i, t in enumerate(specs)
                                             if (t.is_owned or (t.tied and self.wrapping.gathers_tied))
                                             and (choose is None or choose(t)))
        return self.known[kind, choose]

    def _stored(self, layer: int) -> str:
        """Type on which a layer's parameters insist, "" for none."""
        return next(spec.stored for spec in self.graph.tensors[self.graph.layers[layer].kind])

    def _kind(self, layer: int) -> str:
        return self.graph.kinds[self.graph.layers[layer].kind].name

    def _block_of(self, layer: int) -> object:
        return self.graph.kinds[self.graph.layers[layer].kind].block

    def _trains(self, layer: int) -> bool:
        return any(t.trainable for t in self.graph.tensors[self.graph.layers[layer].kind])
