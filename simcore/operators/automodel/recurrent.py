"""Mixers with a recurrent state: Nemotron-H's Mamba-2 and Qwen's gated delta net, as NeMo Automodel runs them.

nemo-automodel 0.7.0 `components/models/nemotron_v3/layers.py`: one kernel call from the input projection to the output,
that of `operators/shared/mamba_scan.py`.

[Note: Automodel's delta net]
`components/models/qwen3_5_moe/cp_linear_attn.py`, CPAwareGatedDeltaNet._forward_no_cp: transformers' projections,
convolution, rule and norm, with two differences. Query and key are repeated for every value head before the rule, which
then copies the value alone (fla-core 0.6.0 `utils`, input_guard). The decay is that of a module with A_log and dt_bias
in fp32, an FSDP2 unit whose hooks run around it (`components/distributed/parallelizer_utils.py`, fully_shard_by_dtype).
Where the batch has a mask of its tokens, what the net is given is multiplied by it first
(`apply_mask_to_padding_states`). Qwen3-Next's (`models/qwen3_next/layers.py`, Qwen3NextFp32GatedDeltaNet) is the same
net behind two joint projections.

[Note: Mamba's unit in fp32]
`models/nemotron_v3/layers.py`, NemotronV3MambaFP32Params: copies of A_log, dt_bias and D, an FSDP2 unit whose hooks run
around it, as those of the delta net's decay. Nothing that it is given reaches what it puts out, so that its gradients
are reduced when backward is done, as those of all units whose post-backward hook did not run.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import GatedDeltaNet, Mamba2
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import linear, norm
from simcore.operators.shared import aten, delta_rule
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.operators.shared.layer_borders import OF_FP32, as_inner_unit
from simcore.operators.shared.mamba_scan import split_conv_scan
from simcore.recording.rows import FP32_BACKWARD_BEGIN, FP32_FORWARD_BEGIN, FP32_FORWARD_END
from simcore.recording.tape import Tape, Tensor

__all__ = ["delta_net", "mamba"]


def mamba(env: Env, x: Tensor, block: Mamba2, path: str) -> Tensor:
    """Output of a Mamba-2 mixer for `x` [batch, sequence, hidden], in x's shape.

    `path`: name of its module. `NemotronV3Mamba2Mixer.forward`, training path: one kernel call from the input
    projection to the output. With context parallelism the heads are exchanged before and after, and norm and output
    projection are modules.
    """
    tape = env.tape
    numbers = _sequence_numbers(env)
    projected = linear(env, x, f"{path}.in_proj")
    rows = projected.shape[0]
    if env.run.cp > 1:
        projected = aten.all_to_all(tape, projected, rows, "cp")
    a_log, dt_bias, d = _state_parameters(env, f"{path}._fp32_params")
    a = aten.neg(tape, aten.exp(tape, a_log))
    small = (env.param(f"{path}.conv1d.weight"), env.param(f"{path}.conv1d.bias"), dt_bias, a, d)
    if env.run.cp == 1:
        tail = (env.param(f"{path}.norm.weight"), env.param(f"{path}.out_proj.weight"))
        return split_conv_scan(tape, projected, block, small, tail, numbers[:1])
    out = split_conv_scan(tape, projected, block, small, None)
    out = aten.all_to_all(tape, out, rows, "cp")
    out = norm(env, out, f"{path}.norm", by_backend=False)
    return linear(env, out, f"{path}.out_proj")


def _sequence_numbers(env: Env) -> tuple[Tensor, ...]:
    """Sequence number of every token in a pack (`layers.py`, seq_idx), and its position; () without packing.

    The kernel keeps the sequence numbers; positions are held until the mixer returns. Each layer makes both.
    """
    if not env.run.sequences:
        return ()
    tokens = (env.run.tokens,)
    positions = new(env.tape, tokens, "int64", "positions")
    wide = new(env.tape, tokens, "int64", "seq_idx_int64", positions.nbytes)
    return new(env.tape, tokens, "int32", "seq_idx", wide.nbytes), positions


def _state_parameters(env: Env, path: str) -> tuple[Tensor, ...]:
    """[Note: Mamba's unit in fp32]: copies of A_log, dt_bias and D, all [heads], by the module `path`."""
    tape, inside = env.tape, env.options.fp32_unit
    params = [env.param(f"{path}.{name}") for name in ("A_log", "dt_bias", "D")]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        if inside:
            tape.mark(FP32_BACKWARD_BEGIN)
        return [*grads, *[None] * (len(params) - len(grads))]

    if inside:
        tape.mark(FP32_FORWARD_BEGIN)
    node = tape.node(params, (), backward)
    made = [new(tape, param.shape, param.dtype, "ssm_params", param.nbytes) for param in params]
    out = tuple(Tensor(t.storage, t.shape, t.dtype, node, place) for place, t in enumerate(made))
    if inside:
        tape.mark(FP32_FORWARD_END)
    return out


# ---- gated delta net ------------------------------------------------------------------------------------------------
def delta_net(env: Env, x: Tensor, block: GatedDeltaNet, path: str) -> Tensor:
    """[Note: Automodel's delta net]: output for `x` [batch, sequence, hidden], in x's shape.

    `path`: the module's name in the layer. The caller adds the residual.
    """
    tape, shape = env.tape, x.shape
    if env.options.masks_padding:
        x = _masked(tape, x)
    held, pieces = list[Tensor](), list[Tensor]()
    if block.joint:
        held += [linear(env, x, f"{path}.in_proj_{part}") for part in ("qkvz", "ba")]
        mixed, z, b, a = delta_rule.by_key_heads(tape, block, held, pieces)
    else:
        mixed, z, b, a = (linear(env, x, f"{path}.in_proj_{part}") for part in ("qkv", "z", "b", "a"))
    mixed = delta_rule.convolution(tape, env.param(f"{path}.conv1d.weight"), mixed, block.conv_kernel)
    query, key, value = aten.split(tape, mixed, (block.keys, block.keys, block.values))
    pieces.clear()
    beta = aten.sigmoid(tape, b)
    g = _gate(env, a, f"{path}._fp32_params")
    times = block.num_value_heads // block.num_key_heads
    query, key = (_repeated(tape, block, part, times) for part in (query, key))
    whole = replace(block, num_key_heads=block.num_value_heads)
    out = delta_rule.rule(tape, whole, (query, key, value), g, beta, copied=("value",) if times > 1 else None)
    heads = (env.run.tokens * block.num_value_heads, block.value_dim)
    out = delta_rule.gated_norm(tape, env.param(f"{path}.norm.weight"), out.view(*heads), z.view(*heads))
    return linear(env, out.view(*shape[:2], block.values), f"{path}.out_proj")


def _masked(tape: Tape, x: Tensor) -> Tensor:
    """`x * mask[:, :, None]`, which keeps the mask alone; the mask is the batch's."""
    shape, dtype, moved = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, shape, dtype, "grad_masked", moved)]

    node = tape.node((x,), (), backward)
    out = new(tape, shape, dtype, "masked", moved)
    out.node = node
    return out


def _gate(env: Env, a: Tensor, path: str) -> Tensor:
    """Decay of `a` by the module `path`, around which hooks run where FSDP2 gathers it apart."""
    if env.options.fp32_unit:
        return as_inner_unit(env.tape, a, lambda given: _decay(env, given, path), OF_FP32)
    return _decay(env, a, path)


def _decay(env: Env, a: Tensor, path: str) -> Tensor:
    """`SSMGate.forward`: the decay of `a` [batch, sequence, heads], in fp32."""
    tape = env.tape
    rate = aten.neg(tape, aten.exp(tape, env.param(f"{path}.A_log")))
    step = aten.softplus(tape, aten.add(tape, aten.cast(tape, a, "fp32"), env.param(f"{path}.dt_bias")))
    return aten.mul(tape, rate, step, "decay")


def _repeated(tape: Tape, block: GatedDeltaNet, x: Tensor, times: int) -> Tensor:
    """`x` [batch, sequence, heads of keys] with each head `times` times; `x` itself for once."""
    if times == 1:
        return x
    heads = Tensor(x.storage, (*x.shape[:2], block.num_key_heads, block.key_dim), x.dtype, x.node, x.output)
    made = aten.repeat_heads(tape, heads, times)
    return Tensor(made.storage, (*x.shape[:2], times * x.shape[2]), made.dtype, made.node)
