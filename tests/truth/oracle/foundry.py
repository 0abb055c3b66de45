"""llm-foundry's own MPT (0.3.0) under FSDP2 in its precision, on fake tensors, with flash-attn's own loss (1.0.9).

Modules and their backward passes are the packages'; the micro step is written like Composer 0.16.4's _train_microbatch:
`outputs` lives until the next forward returns, and two metrics over its logits follow backward. `llmfoundry` and
`flash_attn` are to be on the path, as sources.

Stand-ins: Composer, which only names base classes here; launches of Triton's and CUDA's kernels, which allocate nothing
(the Python around them does, and is upstream's; its assertions about the device are off); LayerNorm's
statistics are in fp32, as CUDA's are.
The metrics' cast of log-probabilities to fp32 is what torch's autocast does on CUDA, seen on fake CUDA tensors.
"""

from __future__ import annotations

import gc
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from .launch import Launch
from .steps.setup import tag_shards, two_steps
from .steps.tracker import Tracker

Case = dict[str, Any]


def layer_norm(mode: FakeTensorMode, _op: Any, x: torch.Tensor, shape: list[int], *_: Any) -> tuple[torch.Tensor, ...]:
    """With statistics in fp32, as CUDA has them; the CPU's have the input's type."""
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    with mode:
        return torch.empty_like(x), *(torch.empty(rows, dtype=torch.float32) for _ in range(2))


op_implementations_dict[torch.ops.aten.native_layer_norm.default] = layer_norm


def stub(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module
    return module


def package(name: str, at: Path) -> None:
    """A package whose own `__init__`, which imports everything, is not run."""
    stub(name, __path__=[str(at)])


def prepare() -> Any:
    """llm-foundry's modelling module."""
    metric = type("Metric", (), {})
    names = ("InContextLearningCodeEvalAccuracy", "InContextLearningLMAccuracy",
             "InContextLearningLMExpectedCalibrationError", "InContextLearningMCExpectedCalibrationError",
             "InContextLearningMultipleChoiceAccuracy", "InContextLearningQAAccuracy")
    stub("composer.metrics.nlp", LanguageCrossEntropy=metric, LanguagePerplexity=metric)
    stub("composer.metrics", **dict.fromkeys(names, metric))
    stub("composer.models", HuggingFaceModel=nn.Module)
    stub("composer.utils", dist=None)
    stub("composer")
    stub("triton_pre_mlir.language", constexpr=int)
    stub("triton_pre_mlir", jit=Launch, heuristics=Launch, autotune=Launch, Config=Launch, cdiv=lambda a, b: -(-a // b),
         next_power_of_2=lambda n: 1 << (n - 1).bit_length(), language=sys.modules["triton_pre_mlir.language"])
    stub("xentropy_cuda_lib", forward=xentropy, backward=lambda _g, logits, *_: torch.empty_like(logits))
    path = sources()
    root = path / "llmfoundry"
    without_assertions("flash_attn.losses.cross_entropy", path / "flash_attn" / "losses" / "cross_entropy.py")
    for name in ("", ".models", ".models.utils", ".models.layers", ".models.mpt"):
        package(f"llmfoundry{name}", root.joinpath(*name.split(".")[1:]))
    for name in ("adapt_tokenizer", "hf_prefixlm_converter", "meta_init_context"):
        stub(f"llmfoundry.models.utils.{name}", **dict.fromkeys((
            "AutoTokenizerForMOD", "adapt_tokenizer_for_denoising", "add_bidirectional_mask_if_missing",
            "convert_hf_causal_lm_to_prefix_lm", "init_empty_weights")))
    stub("llmfoundry.models.utils.param_init_fns", generic_param_init_fn_=None, MODEL_INIT_REGISTRY={})
    without_assertions("llmfoundry.models.layers.flash_attn_triton", root / "models/layers/flash_attn_triton.py")
    attention = importlib.import_module("llmfoundry.models.layers.attention")
    attention.check_valid_inputs = lambda *_, **__: None
    return importlib.import_module("llmfoundry.models.mpt.modeling_mpt")


def sources() -> Path:
    """Where on the path they are."""
    return Path(next(path for path in sys.path if (Path(path) / "llmfoundry").is_dir()))


def without_assertions(name: str, file: Path) -> None:
    module = stub(name, __file__=str(file))
    exec(compile(file.read_text(), str(file), "exec", optimize=1), vars(module))  # noqa: S102


def xentropy(logits: torch.Tensor, labels: torch.Tensor, _smoothing: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`csrc/xentropy/xentropy_kernel.cu`: log-sum-exp, then losses, in fp32."""
    lse = torch.empty_like(labels, dtype=torch.float32)
    return torch.empty_like(labels, dtype=torch.float32), lse


class Unpadded(torch.autograd.Function):
    """What flash-attn 2.4.2 allocates of sequences that lie end to end (`csrc/flash_attn/flash_api.cpp`)."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seq: int) -> torch.Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty((q.shape[0] // seq, q.shape[1], seq), dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> Any:
        q, *_, lse = ctx.saved_tensors
        made = [torch.empty_like(q) for _ in range(3)]
        rows = q.shape[0] + 128 * lse.shape[0]
        wide = -(-q.shape[2] // 32) * 32
        _sums = q.new_empty((lse.shape[0], q.shape[1], -(-lse.shape[2] // 128) * 128), dtype=torch.float32)
        _dq = q.new_empty((rows, q.shape[1], wide), dtype=torch.float32)
        return *made, None


def with_flash(path: Path, seq: int) -> None:
    """flash-attn's own padding around a kernel that allocates; every row counts, and the host knows how many."""
    stub("flash_attn.flash_attn_interface",
         flash_attn_unpadded_func=lambda q, k, v, *_, **__: Unpadded.apply(q, k, v, seq))
    without_assertions("flash_attn.bert_padding", path / "flash_attn" / "bert_padding.py")
    stub("flash_attn", flash_attn_interface=sys.modules["flash_attn.flash_attn_interface"],
         bert_padding=sys.modules["flash_attn.bert_padding"])
    torch.nonzero = lambda mask, as_tuple=False: torch.empty((mask.numel(), 1), dtype=torch.int64)
    item = torch.Tensor.item
    torch.Tensor.item = lambda self: seq if isinstance(self, FakeTensor) else item(self)


def build(case: Case) -> nn.Module:
    """Blocks and root wrapped; checkpoints inside."""
    modelling = prepare()
    if case["attn_impl"] == "flash":
        with_flash(sources(), case["seq"])
    configuration = importlib.import_module("llmfoundry.models.mpt.configuration_mpt")
    config = configuration.MPTConfig(**case["model"], init_device="meta",
                                     attn_config={**case.get("attn", {}), "attn_impl": case["attn_impl"]})
    config.tie_word_embeddings = True  # the default of transformers' base class, which version 5 has not
    model = modelling.MPTForCausalLM(config).train()
    mesh = init_device_mesh("cpu", (case["world"],), mesh_dim_names=("dp_shard",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    blocks = model.transformer.blocks
    for number in range(len(blocks)):
        if case.get("checkpoint"):
            blocks[number] = checkpoint_wrapper(blocks[number])
        fully_shard(blocks[number], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """`ComposerMPTCausalLM.get_targets` and `loss`."""
    loss = sys.modules["flash_attn.losses.cross_entropy"].CrossEntropyLoss(ignore_index=-100)
    targets = torch.roll(labels, shifts=-1)
    targets[:, -1] = -100
    found: torch.Tensor = loss(logits.view(-1, logits.size(-1)), targets.view(-1))
    return found


def metric(logits: torch.Tensor, target: torch.Tensor) -> None:
    """`LanguageCrossEntropy.update` under autocast."""
    target = target.view(-1)
    rows = torch.log_softmax(logits.view(target.shape[0], -1), -1)
    torch.nn.functional.nll_loss(rows.float(), target, ignore_index=-100, reduction="sum")


def micro_step(model: Any, case: Case, tr: Tracker, held: dict[str, torch.Tensor]) -> None:
    shape = (case.get("batch", 1), case["seq"])
    tr.phase = "fwd"
    ids, labels = (torch.randint(0, case["model"]["vocab_size"], shape) for _ in range(2))
    for tensor in (ids, labels):
        tr.tag(tensor, "input")
    tr.mark("fwd:begin")
    held["logits"] = model(input_ids=ids).logits
    loss = loss_of(held["logits"], labels)
    tr.mark("fwd:end")
    tag_shards(tr, model)
    tr.phase, tr.layer = "bwd", "loss"
    tr.mark("bwd:begin")
    loss.backward()
    del loss
    with torch.no_grad():
        for _ in range(2):
            metric(held["logits"], labels)
    del ids, labels
    gc.collect()
    tr.mark("bwd:end")


def logged(case: Case) -> tuple[Tracker, dict[str, tuple[int, ...]]]:
    """The log of two steps, and the local shape of every parameter."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["world"])
    model = build(case)
    tr, held = Tracker(), {}
    with FakeTensorMode(allow_non_fake_inputs=True), tr:
        model.to_empty(device="cpu")
        gc.collect()
        return tr, two_steps(model, tr, lambda: micro_step(model, case, tr, held))


__all__ = ["logged"]
