"""Plain PyTorch FSDP2 (`fully_shard`) and HSDP, torch 2.13, around Hugging Face models.

Rules: `torch/distributed/fsdp/_fully_shard/` (one `fully_shard` call is one unit; every parameter is cut on dimension 0
in `ceil(d0 / W)` rows and its storage is padded; `reshard_after_forward=None` means True for children, False for the
root). Experts on an expert-parallel axis are either plain local tensors in `ignored_params`, or DTensors cut again by
`fully_shard` on the remaining data-parallel ranks.
"""

from __future__ import annotations

from simcore.form import Form, Layout, Partial, Shard
from simcore.framework import Framework, Life, Matches, Moment, Rule, Unit, UnshardFlow
from simcore.frameworks import _torchtitan
from simcore.frameworks._torch import all_or_no_checkpoint, refuse_virtual_stages, torch_optimizer
from simcore.graph import ModelGraph
from simcore.job import Job
from simcore.lora_names import name_adapters
from simcore.models.blocks import LayerKind, Moe
from simcore.tensor import TensorSpec

__all__ = ["DEFAULT_IMPLEMENTATION", "IMPLEMENTATIONS", "VERSIONS", "adapters", "table"]

VERSIONS = ("torch 2.13",)
DEFAULT_IMPLEMENTATION = "hf"
IMPLEMENTATIONS = ("hf", "torchtitan")
RULE = "torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_init.py"
OPTIONS = {
    "wrap": ("layers_root", "separate_embedding_head"),
    "reshard_after_forward": (None, True, False, int),
    "set_last_reshard": (None, True, False),
    "sync_gradients": ("last", "every"),
    "prefetch": (None, int),
    "experts": ("fully_shard", "ignored"),
    "experts_implementation": (None, "grouped_mm"),
}

adapters = name_adapters


def table(job: Job) -> Framework:
    """FSDP2 applied to a job."""
    titan = _is_titan(job)
    _check(job)
    options, precision = job.options(OPTIONS | (_torchtitan.OPTIONS if titan else {})), job.scenario.training.precision
    if titan:
        _torchtitan.check(job, options)
    stored = job.auto("training.precision.params", precision.params, "fp32", "sharded fp32 parameters under a policy")
    reduce = job.auto("training.precision.grad_reduce", precision.grad_reduce, *(
        ("fp32", "torchtitan 0.2.2 config/job_config.py: mixed_precision_reduce") if titan else
        (job.compute, "MixedPrecisionPolicy(reduce_dtype=None): the compute dtype")))
    _note_defaults(job, options)
    fully = job.mesh.ep > 1 and options.get("experts", "fully_shard") == "fully_shard"
    return Framework(
        name="fsdp2", version=VERSIONS[0],
        rules=_rules(job, stored, fully=fully),
        units=_units(job, options, reduce, fully=fully),
        flow=UnshardFlow(options.get("prefetch") or 0, options.get("sync_gradients", "every" if titan else "last")),
        optimizer=torch_optimizer(job, "torchtitan 0.2.2 config/job_config.py: fused", "fused") if titan else
        torch_optimizer(job, "torch 2.13 optim/adam.py: foreach by default on CUDA"),
        compute_dtype=job.compute,
        checkpoint=_torchtitan.checkpoint(job) if titan else all_or_no_checkpoint(job),
        loss=job.auto("training.loss", job.scenario.training.loss, *(
            ("torchtitan", "torchtitan 0.2.2 components/loss.py") if titan else
            ("hf", "transformers 5.23 ForCausalLMLoss"))),
        sequence_parallel=job.mesh.tp > 1,
        stages=(tuple(range(len(job.graph.layers))),),
        options=_torchtitan.options_of(job, options) if titan else
        (*((("experts", "unit"),) if fully else ()), *_experts_implementation(job, options)),
        communicators=_communicators(job, fully=fully),
    )


def _is_titan(job: Job) -> bool:
    return job.graph.implementation == "torchtitan"


def _experts_implementation(job: Job, options: dict[str, object]) -> tuple[tuple[str, str], ...]:
    """Transformers' own grouped products, or the stand-in that expert parallelism needs."""
    if options.get("experts_implementation") is None:
        if job.has_experts:
            job.auto("framework_options.experts_implementation", "auto", "batched products over equal groups of rows",
                     "a stand-in; transformers 5.23 integrations/moe.py has grouped_mm as its default on a GPU")
        return ()
    if job.mesh.ep > 1:
        raise job.not_yet("framework_options.experts_implementation", "grouped_mm with experts split over ranks")
    return (("experts_implementation", "grouped_mm"),)


def _note_defaults(job: Job, options: dict[str, object]) -> None:
    """What is decided tensor by tensor or unit by unit further down."""
    if options.get("reshard_after_forward") is None:
        job.auto("framework_options.reshard_after_forward", "auto", *(
            ("true, false for norm and output", f"{_torchtitan.PLAN} apply_fsdp: default") if _is_titan(job) else
            ("true for layers, false for the root",
             "torch 2.13 _fully_shard/_fully_shard.py: reshard_after_forward=None")))
    if job.scenario.training.optimizer.name != "sgd":
        job.auto("training.optimizer.moments", job.scenario.training.optimizer.moments, "as each parameter is stored",
                 "torch 2.13 optim/adam.py: zeros_like(parameter)")


def _check(job: Job) -> None:
    mesh, training = job.mesh, job.scenario.training
    if mesh.pp > 1:
        raise job.not_yet("mesh.pp", "fsdp2 with pipeline stages (torch.distributed.pipelining)")
    if mesh.tp > 1 and not _is_titan(job):
        raise job.not_yet("mesh.tp", "fsdp2 with tensor parallelism (served with implementation: torchtitan)")
    if mesh.cp > 1:
        raise job.not_yet("mesh.cp", "fsdp2 with context parallelism")
    if mesh.etp > 1:
        raise job.not_yet("mesh.etp", "fsdp2 with experts split by width")
    if mesh.stage_size % mesh.ep:
        raise job.illegal("mesh.ep", f"{mesh.stage_size} ranks must be a multiple of ep {mesh.ep}",
                          "torch 2.13 init_device_mesh: the mesh must cover the ranks")
    if not _is_titan(job):
        job.one_of("training.loss", training.loss, ("auto", "hf", "hf_keep_logits"))
    job.refuse_capacity("transformers 5.23 integrations/moe.py: tokens are never dropped")
    job.refuse_given({"training.sequence_parallel": "False", "training.precision.main_grads": "auto",
                      "training.precision.experts": "auto", "training.optimizer.master": "none",
                      "training.pipeline.layers": "auto", "training.pipeline.schedule": "1f1b"})
    refuse_virtual_stages(job)
    if training.method != "full":
        _check_lora(job)
    _check_experts(job)


def _check_lora(job: Job) -> None:
    job.refuse_given({"training.lora.expert_adapters": "none"})
    lora = job.scenario.training.lora
    targets = () if lora.target_modules == "auto" else lora.target_modules
    if "lm_head" in targets and job.graph.architecture.tied:
        raise job.not_yet("training.lora.target_modules", "an adapter of a tied lm_head")
    patterns = [name for name in (*targets, *lora.exclude_modules) if "*" in name]
    if patterns:
        raise job.not_yet("training.lora", f"patterns ({', '.join(patterns)}) under fsdp2: only last names of modules")


def _check_experts(job: Job) -> None:
    if job.mesh.ep > 1 and not job.has_experts:
        raise job.illegal("mesh.ep", f"ep {job.mesh.ep} on a model without experts: there is nothing to place on it",
                          "expert parallel: DTensor Shard(0) of the experts")
    for kind in job.graph.kinds:
        for branch in kind.branches:
            if isinstance(branch.block, Moe) and branch.block.num_experts % job.mesh.ep:
                raise job.illegal("mesh.ep", f"{branch.block.num_experts} experts must be divisible by ep "
                                  f"{job.mesh.ep}", "expert parallel: DTensor Shard(0) of the experts, even cut")


def _policy(job: Job, reshard: object, shards: int) -> bool | int:
    """A group of 1 means False, of all shards True (torch 2.13 `_fsdp_init.py`, `_get_post_forward_mesh_info`)."""
    assert isinstance(reshard, (bool, int))
    if isinstance(reshard, bool) or reshard == 1:
        return reshard is True
    if reshard < 1 or shards % reshard:
        raise job.illegal("framework_options.reshard_after_forward", "if passing reshard_after_forward as an int, it "
                          f"should be a factor of {shards}, not {reshard}", f"{RULE} _get_post_forward_mesh_info")
    return True if reshard == shards else reshard


def _rules(job: Job, stored: str, *, fully: bool) -> tuple[Rule, ...]:
    compute = job.compute
    dense: Layout = (("dp_shard_cp", Shard(0)),)
    lives = [Rule(lambda t: t.is_buffer, _life("buffer", (), "fp32", "fp32", job, pad=False))]
    if job.mesh.ep > 1:
        split: Layout = (("ep", Shard(0, even=True)),)
        experts = (_life("experts, sharded", (*split, ("expert_dp", Shard(0))), stored, compute, job, used=split)
                   if fully else _plain_experts(split, job))
        lives.append(Rule(lambda t: t.component == "routed_experts", experts))
    adapter = job.scenario.training.lora.dtype
    adapter_stored = stored if adapter == "auto" else adapter
    lives.append(Rule(lambda t: t.module == "adapter", _life("adapters", dense, adapter_stored, compute, job)))
    if job.mesh.tp > 1:
        lives += _tp_rules(job, dense, stored)
    lives.append(Rule(lambda t: True, _life("sharded", dense, stored, compute, job)))
    return tuple(lives)


def _tp_rules(job: Job, dense: Layout, stored: str) -> list[Rule]:
    """FSDP2 cuts on dimension 0 what tensor parallelism has left (torch 2.13 `_fsdp_param.py`, strided shards)."""
    cuts: dict[Layout, Rule] = {}
    for spec in (t for kind in job.graph.tensors for t in kind):
        cut = _torchtitan.tp_layout(spec)
        if cut and cut not in cuts:
            cuts[cut] = Rule(_lies_like(cut), _life("sharded, tp", (*cut, *dense), stored, job.compute, job, used=cut))
    return list(cuts.values())


def _lies_like(cut: Layout) -> Matches:
    return lambda spec: _torchtitan.tp_layout(spec) == cut


def _life(name: str, layout: Layout, stored: str, compute: str, job: Job, used: Layout = (), *,
          pad: bool = True) -> Life:
    moments = job.scenario.training.optimizer.moments
    moment = stored if moments == "auto" else moments
    states = _states(job, layout, moment)
    partial: Layout = (("dp_shard_cp", Partial()),)
    return Life(name, Form(layout, stored), Form(used, compute), Form((*used, *partial), compute), Form(layout, stored),
                states, Moment.UNIT_FORWARD_BEGIN, Moment.UNIT_FORWARD_END, Moment.UNIT_BACKWARD_END, pad_storage=pad)


def _plain_experts(split: Layout, job: Job) -> Life:
    """Local slices outside FSDP: mixed precision does not reach them, nothing reduces their gradients."""
    compute = job.compute
    form = Form(split, compute)
    moments = job.scenario.training.optimizer.moments
    states = _states(job, split, compute if moments == "auto" else moments)
    return Life("experts, ignored", form, form, form, form, states,
                rest_category="ignored_param", grad_made_category="ignored_grad")


def _states(job: Job, layout: Layout, dtype: str) -> tuple[tuple[str, Form], ...]:
    if job.scenario.training.optimizer.name == "sgd":
        return ()
    return (("exp_avg", Form(layout, dtype)), ("exp_avg_sq", Form(layout, dtype)))


def _units(job: Job, options: dict[str, object], reduce: str, *, fully: bool) -> tuple[Unit, ...]:
    graph, reshard = job.graph, options.get("reshard_after_forward")
    make = _UnitMaker(job, reduce)
    children = True if reshard is None else reshard
    last = len(graph.layers) - 1
    around = [layer.index for layer in graph.layers if graph.kinds[layer.kind].block is not None]
    blocks = [layer.index for layer in graph.layers if graph.kinds[layer.kind].block is None]
    units: list[Unit] = []
    titan = _is_titan(job)
    if options.get("wrap", "separate_embedding_head" if titan else "layers_root") == "layers_root":
        units.append(make("root", around, 0, last, False if reshard is None else reshard, is_root=True))
    else:
        norm, head = around[1], around[2]
        names = f"{graph.layers[norm].path}, {graph.layers[head].path}"
        units.append(make("", [], 0, last, reshard=False, is_root=True))
        units.append(make(graph.layers[0].path, [0], 0, 0, children))
        units.append(make(names, [norm, head], norm, head, reshard=titan and reshard is True))
    for block in blocks:
        keep = options.get("set_last_reshard")
        policy = keep if block == blocks[-1] and keep is not None else children
        units.append(make(graph.layers[block].path, [block], block, block, policy, experts=False if fully else None,
                          explicit=True))
        if fully and _is_moe(graph, block):
            units.append(make(_experts_name(job, block), [block], block, block, children, experts=True))
    return tuple(units)


def _experts_name(job: Job, layer: int) -> str:
    wrapped = "._checkpoint_wrapped_module" if all_or_no_checkpoint(job) != "none" else ""
    kind = job.graph.kinds[job.graph.layers[layer].kind]
    name = next(branch.name for branch in kind.branches if isinstance(branch.block, Moe))
    return f"{job.graph.layers[layer].path}{wrapped}.{name}.experts"


class _UnitMaker:
    """Units over layers. `experts`: None all tensors, True only routed experts, False all but them."""

    def __init__(self, job: Job, reduce: str) -> None:
        self.job, self.reduce = job, reduce
        self.ignored = job.mesh.ep > 1
        self.known: dict[tuple[int, bool | None], tuple[int, ...]] = {}

    def __call__(self, name: str, layers: list[int], first: int, last: int, reshard: object, *, is_root: bool = False,
                 experts: bool | None = None, explicit: bool = False) -> Unit:
        members = tuple((layer, self._numbers(layer, experts=experts)) for layer in layers)
        axis = "expert_dp" if experts else "dp_shard_cp"
        policy = _policy(self.job, reshard, self.job.mesh.axis(axis).size)
        replicate = "dp_replicate" if self.job.mesh.dp_replicate > 1 and not experts else ""
        return Unit(name, tuple(m for m in members if m[1]), first, last, axis, replicate, policy, bool(experts),
                    is_root, explicit, self.job.compute, self.reduce, self.job.compute)

    def _numbers(self, layer: int, *, experts: bool | None) -> tuple[int, ...]:
        kind = self.job.graph.layers[layer].kind
        if (kind, experts) not in self.known:
            specs = self.job.graph.tensors[kind]
            self.known[kind, experts] = tuple(i for i, t in enumerate(specs)
                                              if t.is_owned and self._belongs(t, experts=experts))
        return self.known[kind, experts]

    def _belongs(self, spec: TensorSpec, *, experts: bool | None) -> bool:
        routed = spec.component == "routed_experts" and self.ignored
        return routed if experts else not routed


def _is_moe(graph: ModelGraph, layer: int) -> bool:
    kind: LayerKind = graph.kinds[graph.layers[layer].kind]
    return any(isinstance(branch.block, Moe) for branch in kind.branches)


def _communicators(job: Job, *, fully: bool) -> tuple[str, ...]:
    mesh = job.mesh
    sizes = {"tp": mesh.tp, "dp_shard_cp": mesh.dp_shard * mesh.cp, "dp_replicate": mesh.dp_replicate, "ep": mesh.ep,
             "expert_dp": mesh.expert_dp if fully else 1}
    return tuple(name for name, size in sizes.items() if size > 1)
