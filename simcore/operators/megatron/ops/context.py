"""Context of Megatron-Core's operators: a layer's tape with its parameters, and regions that are recomputed.

Source: megatron-core 0.16.1 (`tensor_parallel/random.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from simcore.models.blocks import LayerKind, Mlp, Mtp
from simcore.operators.megatron.ops.options import FUSED_MULTIPLE, MegatronOptions
from simcore.recording.kernel_shape import shape_of
from simcore.recording.layer import LayerWorkload
from simcore.recording.number_formats import Scaling, in_model, matched
from simcore.recording.tape import GRADIENTS_BEGIN, Kernel, Node, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["Context", "Grads", "Saved", "fuses_wgrad", "region_end"]

Grads = list[Tensor | None]
Saved = list[Tensor]
_ADAPTER = "adapter.linear_{}.weight"


def fuses_wgrad(run: LayerWorkload) -> bool:
    """True if the GEMM of a weight gradient adds it to main_grad itself (gradient_accumulation_fusion)."""
    return MegatronOptions.of(run.options).gradient_accumulation_fusion


@dataclass(slots=True)
class Context:
    """Things that every operator of one recorded layer needs: tape, workload, kind, split of tokens.

    `held`: tensors that a module holds as attributes, by name. `locals`: tensors that a variable of the caller holds.
    `recipe`: the linear's fp8 recipe where it differs from that of all linears. `flags`: `inside`, a recomputed region
    is being run, and `has_gradients`, a parameter's gradient exists. `stashed`: tensors that go to pages, as (slot,
    bytes, bytes that are filled).
    """

    tape: Tape
    run: LayerWorkload
    kind: LayerKind
    held: dict[str, Tensor] = field(default_factory=dict)
    locals: list[Tensor] = field(default_factory=list)
    recipe: str = ""
    flags: set[str] = field(default_factory=set)
    stashed: list[tuple[int, int, int]] = field(default_factory=list)

    def of(self, path: str) -> Context:
        """Context for the linear at `path`, with the recipe that quant_recipe gives to it.

        Returns this context if no pattern matches.
        """
        matchers = self.options.quant_recipe
        found = matched(matchers, in_model(path, further=isinstance(self.kind.block, Mtp))) if matchers else ""
        return replace(self, recipe=found) if found else self

    @property
    def options(self) -> MegatronOptions:
        """Options of Megatron-Core's layers in this run."""
        return MegatronOptions.of(self.run.options)

    @property
    def inside(self) -> bool:
        """True while a recomputed region is being run."""
        return "inside" in self.flags

    @property
    def sp(self) -> int:
        """Number of ranks that split the sequence by sequence parallelism; 1 without it."""
        return self.run.tp if self.run.sequence_parallel else 1

    @property
    def tokens(self) -> int:
        """Number of this rank's tokens after context parallelism, before sequence parallelism."""
        return self.run.tokens

    @property
    def local(self) -> int:
        """Number of this rank's tokens in its residual stream, after sequence parallelism."""
        return -(-self.run.tokens // self.sp)

    @property
    def dtype(self) -> str:
        """Compute dtype."""
        return self.run.compute

    @property
    def size(self) -> int:
        """Bytes of one element of the compute dtype."""
        return dtype_bytes(self.run.compute)

    @property
    def fuses_activation(self) -> bool:
        """True if a gated activation is one kernel (`transformer_config.py`, bias_activation_fusion), not GELU."""
        gelus = any(isinstance(one.block, Mlp) and one.block.gelu and one.block.gated for one in self.kind.branches)
        return self.options.bias_activation_fusion and not gelus

    @property
    def has_unfused_attention(self) -> bool:
        """True if attention saves all its probabilities (attention_backend unfused or local, local layers)."""
        return self.options.attention_backend == "unfused"

    @property
    def fuses_permutation(self) -> bool:
        """True if TE permutes rows (moe_permute_fusion); else torch selects rows by their indices."""
        return self.options.moe_permute_fusion

    @property
    def expert_axis(self) -> str:
        """Mesh axis of the group that upstream makes of expert tensor and expert parallel ranks together."""
        return self.run.ep_axis if self.run.ep > 1 else "etp"

    def permutation(self, moved_bytes: int, operators: int = 0) -> None:
        """Records a kernel that copies tokens into another order.

        `moved_bytes`: read and written; `operators`: torch operators that it takes where nothing fuses them.
        """
        self.tape.compute(Kernel.PERMUTE, 0, moved_bytes, 0 if self.fuses_permutation else operators)

    @property
    def is_deterministic(self) -> bool:
        """True if torch.use_deterministic_algorithms is on (deterministic_mode)."""
        return self.options.deterministic_mode

    @property
    def is_cut_into_nodes(self) -> bool:
        """True if a layer runs as nodes with separate backward passes (overlap_moe_expert_parallel_comm)."""
        return self.options.overlap_moe_expert_parallel_comm

    @property
    def overlaps_tp(self) -> bool:
        """True if linears gather and reduce through user buffers, outside torch's allocator (tp_comm_overlap)."""
        return self.sp > 1 and self.options.tp_comm_overlap

    @property
    def scaling(self) -> Scaling | None:
        """Recipe by which the linear quantises its operands; None where it computes in 16 bits."""
        if not self.kind.fp8 or self.recipe == "bf16":
            return None
        return Scaling(self.recipe or self.options.fp8_recipe, self.options.fp8_transposes)

    def product(self, *, grouped: bool = False) -> Kernel:
        """Kernel class of a linear's product of quantised operands; `grouped`: that of all experts' linears."""
        if self.scaling is not None and self.scaling.recipe == "nvfp4":
            return Kernel.FP4_GROUPED_GEMM if grouped else Kernel.FP4_GEMM
        return Kernel.FP8_GROUPED_GEMM if grouped else Kernel.FP8_GEMM

    @property
    def attends_in_fp8(self) -> bool:
        """True if attention's products are of 8-bit numbers (fp8_dot_product_attention)."""
        return self.kind.fp8 and self.options.fp8_dot_product_attention

    @property
    def pads_routing(self) -> bool:
        """True if the router pads every expert's rows to a number that 8-bit products require."""
        return self.kind.fp8 and self.options.moe_router_padding_for_quantization

    def padded_rows(self, rows: int, experts: int) -> int:
        """Number of rows after padding, all experts together, as `Scaling.padded_rows`; for linears in 8 or 4 bits."""
        assert self.scaling is not None
        multiple = FUSED_MULTIPLE if self.options.use_transformer_engine_op_fuser else 0
        return self.scaling.padded_rows(rows, experts, multiple)

    @property
    def keeps_fp8_weights(self) -> bool:
        """True if fp8 weights outlast a pass: cached for the step's microbatches, or parameters themselves."""
        return self.options.keeps_fp8_weights

    def keeps_original(self, path: str) -> bool:
        """True if the linear at `path` saves its bf16 input instead of the quantised one.

        Core 0.16.1 calls set_save_original_input for these: `attention.py:379`, `multi_latent_attention.py:199`;
        `moe/experts.py:595`, `moe/moe_layer.py:466`, `multi_latent_attention.py:974` where the input is made again in
        backward. Delayed scaling keeps fp8.
        """
        if self.scaling is None or self.scaling.recipe == "delayed":
            return False
        again = self.recomputes("layernorm") and not self.inside
        return path == "self_attention.linear_proj" or (
            path == "mlp.experts.linear_fc2" and self.recomputes("moe_act")) or (
            again and path.endswith(("shared_experts.linear_fc1", "_down_proj"))
            and not (self.recomputes("shared_experts") and "shared" in path))

    @property
    def swaps_heads(self) -> bool:
        """True if context parallel ranks exchange positions for heads and keep the output that is not exchanged yet.

        Option cp_comm_type.
        """
        heads, ring = self.options.exchange(self.run.cp)
        return heads > 1 and (ring == 1 or not self.options.sends_output_again)

    @property
    def has_flash_attention(self) -> bool:
        """True if attention is flash-attn's and not cuDNN's: it works on sequences one after the other."""
        return self.options.attention_backend == "flash"

    def recomputes(self, module: str) -> bool:
        """True if Megatron's selective recompute names `module` (`transformer_config.py`, recompute_modules)."""
        return module in [m.strip() for m in self.run.checkpoint.split(",")]

    def param(self, name: str) -> Param:
        """Parameter with that name, relative to the layer. Raises KeyError if the layer has none."""
        return self.run.params[name]

    def pair(self, path: str) -> tuple[Param, Param] | None:
        """LoRA matrices (in, out) of the linear at `path`; None if it has no adapter."""
        names = [f"{path}.{_ADAPTER.format(end)}" for end in ("in", "out")]
        return (self.run.params[names[0]], self.run.params[names[1]]) if names[0] in self.run.params else None

    def new(self, rows: int, columns: int, name: str, dtype: str = "", category: str = "") -> Tensor:
        """New uninitialised tensor [rows, columns], allocated under `name`; `dtype`: "" for the compute dtype.

        `category`: of its bytes, "" for that of the phase.
        """
        return self.tape.empty((rows, columns), dtype or self.dtype, name, category)

    def node(self, out: Tensor, inputs: Sequence[Tensor | Param | None], save: Sequence[Tensor],
             backward: Callable[[Tape, Grads, Saved], Sequence[Tensor | None]]) -> Node | None:
        """Gives `out` an autograd node and returns it; None if no input needs a gradient.

        `save`: tensors that the node saves. Custom functions save them at the end of forward, after all outputs.
        """
        out.node = self.tape.node(inputs, save, backward)
        return out.node

    # ---- cost ---------------------------------------------------------------------------------------------------
    def gemm(self, m: int, n: int, k: int, kernel: Kernel = Kernel.GEMM, weights: int = 1) -> None:
        """Records one product (m, k) x (k, n), of kernel class `kernel`.

        A grouped GEMM shares the m rows among `weights` matrices and reads all. Its output is in 16 bits in any format.
        """
        self.tape.compute(kernel, 2 * m * n * k, self._read(m * k + weights * n * k, kernel) + self.size * m * n,
                          shape_of(m, n, weights))

    def _read(self, numel: int, kernel: Kernel) -> int:
        """Bytes of a product's operands: quantised ones are read as they lie, with their scales."""
        if kernel < Kernel.FP8_GEMM:
            return self.size * numel
        assert self.scaling is not None
        return round(self.scaling.width * numel)

    def wgrad(self, param: Param, m: int, kernel: Kernel = Kernel.GEMM, weights: int = 1, *,
              opens: bool = True) -> Tensor | None:
        """Records the GEMM of a weight gradient; returns a new tensor with the gradient, or None.

        None if the GEMM adds it to main_grad or the weight is frozen. `m`: rows that are summed over; `weights`: number
        of matrices. Without gradient accumulation fusion the gradient is made in the parameter's dtype, and DDP's hook
        adds it to main_grad and drops it (`distributed/distributed_data_parallel.py`). `opens`: the bucket of the
        layer's first gradient is made now, and not when the node is over (`after_gradients`).
        """
        if not param.trainable:
            return None
        if opens or fuses_wgrad(self.run):
            self._begin_gradients()
        n, k = param.shape[-2:]
        main = 2 * self.options.main_grad_bytes
        grad = None
        if param.grad_category or not fuses_wgrad(self.run):
            main = dtype_bytes(param.dtype)
            shape = param.shape if len(param.shape) > 2 or weights == 1 else (weights, *param.shape)
            grad = self.tape.empty(shape, param.dtype, f"{param.name}.grad")
        self.tape.compute(kernel, 2 * m * n * k, self._read(m * (n + k), kernel) + weights * n * k * main,
                          shape_of(n, k, weights, sums_rows=True))
        return grad

    def small_grad(self, param: Param) -> Tensor | None:
        """Gradient that a kernel writes out.

        None if DDP's hook has added it to main_grad, or `param` is frozen.
        """
        if not param.trainable:
            return None
        self._begin_gradients()
        grad = self.tape.empty(param.shape, param.dtype, f"{param.name}.grad")
        if param.grad_category:
            return grad
        main = 2 * self.options.main_grad_bytes
        self.tape.compute(Kernel.ELEMENTWISE, grad.numel, grad.nbytes + grad.numel * main, 1)
        return None

    def after_gradients(self, x: Tensor) -> Tensor:
        """View of `x` with a node that runs in backward right after the node that reads it.

        Hooks of parameters run then; Megatron-FSDP makes a bucket there unless the product adds into main_grad itself
        (megatron_fsdp.py, _grad_acc). Without such buckets it returns `x` itself.
        """
        if fuses_wgrad(self.run) or not self.options.gradient_buckets or x.node is None:
            return x

        def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
            self._begin_gradients()
            return list(grads)

        out = Tensor(x.storage, x.shape, x.dtype)
        self.node(out, (x,), (), back)
        return out

    def _begin_gradients(self) -> None:
        """Marks the layer's first gradient: where main gradients are made bucket by bucket, it makes its bucket."""
        if "has_gradients" not in self.flags and self.options.gradient_buckets:
            self.tape.mark(GRADIENTS_BEGIN)
        self.flags.add("has_gradients")

    def elementwise(self, tensor: Tensor, passes: int, kernel: Kernel = Kernel.ELEMENTWISE, operators: int = 0) -> None:
        """Records a kernel bound by memory: `passes` reads and writes of a tensor this large.

        `operators`: number of torch operators that it takes, 0 if it is one call of a module.
        """
        self.tape.compute(kernel, tensor.numel, passes * tensor.nbytes, operators)

    def send(self, collective: str, axis: str, tensor: Tensor) -> None:
        """Records a collective over mesh axis `axis`, also if that has one rank: callers ask first.

        Its payload (gathered output, or whole input) is `tensor`.
        """
        self.tape.collective(collective, axis, tensor.nbytes, tensor.dtype)

    # ---- recomputation ------------------------------------------------------------------------------------------
    def region(self, run: Callable[[], Tensor]) -> Tensor:
        """Output of `run()`, which is checkpointed: it saves its inputs and runs again in backward.

        `tensor_parallel.checkpoint`: reentrant, so the replay runs to the region's end (`random.py`). Inside another
        region it is only run.
        """
        if self.inside:
            return run()
        made: list[Tensor] = []

        def whole() -> Tensor:
            self.flags.add("inside")
            try:
                return region_end(self, run(), made)
            finally:
                self.flags.remove("inside")

        return self.tape.checkpoint(whole)


def region_end(c: Context, out: Tensor, made: list[Tensor]) -> Tensor:
    """View of a region's output `out`, at whose node its replay ends; `out` itself without a gradient.

    The node keeps what the replay made until the region's backward is over. `made`: list that gets the replay's tensors
    and their gradients. `outputs` and `args` are variables of `CheckpointFunction.backward`, which runs the region's
    backward (`random.py`).
    """

    def back(_tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made.extend([*saved, *(grad for grad in grads if grad)])
        return grads

    ended = Tensor(out.storage, out.shape, out.dtype)
    return ended if c.node(ended, (out,), (out,), back) else out
