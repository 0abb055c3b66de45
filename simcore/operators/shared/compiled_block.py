"""A dense decoder block under torch.compile (torch 2.13): what AOTAutograd keeps and what Inductor allocates.

The block is one autograd node. What it keeps is what the min-cut partitioner chose (torch/_functorch/partitioners.py):
its input, and without checkpointing the inputs of products and of attention; per operator every second product and
attention's output; whole, nothing else. Pointwise chains and norms are one kernel with one output. Backward makes the
rest again, the MLP's first. Keys and values that are repeated for every head are kept as attention reads them.
Measured by `tests/truth/probe_titan_compiled.py` and `probe_layer_compiled.py`, which run
Inductor's own code.

In fp8 (torchao 0.18 `float8/float8_linear.py`, one scale a tensor) the same is kept, in bf16: the partitioner casts
again. What a product reads is cast into one byte an element, in the order that it wants, weights too unless they were
gathered so; gradients of weights are bf16. Scales weigh a few bytes and are left out.

[Note: asynchronous tensor parallelism]
Where memory of the tp group is symmetric, Inductor's pass (torch 2.13 `_inductor/fx_passes/micro_pipeline_tp.py`) makes
one operator of an all-gather and the products that read its output by rows, and one of a single product and the
reduce-scatter of its output; the reduce-scatter of a sum of products, in backward, is as it was. Such an operator
(`distributed/_symmetric_memory/__init__.py`) multiplies the piece of one rank while that of the next is copied, on two
streams. What is gathered lies in rank order as products read it, and nothing is copied after.

[Note: a scale a row]
torchao's recipe "rowwise" casts each operand by rows along the sum of its product, so twice: the input, a weight and a
gradient have other scales in forward and in backward (`float8/config.py`, from_recipe_name). Forward's products scale
rows themselves (torch's CUTLASS kernel); the others, which add up more exactly, are cuBLAS's without scales, and their
outputs are multiplied after (`float8/float8_ops.py`, addmm_float8_unwrapped): in the kernel that reads them, but for
gradients of weights. Tensor parallelism is that of 16 bits (torchtitan `models/llama3/infra/parallelize.py`:
float8_is_rowwise), so that what is gathered is cast after, largest values of rows that ranks share are reduced first,
and of [Note: asynchronous tensor parallelism] only forward's reduce-scatters are left.

Assumed: Inductor's CUDA backend cuts and orders kernels as its CPU one does, which was measured. It may cast weights
later, so casts are here made where they are read. Not measured: context parallelism, whose ring is the eager one here.
"""

from __future__ import annotations

from simcore.operators.shared.compiled_kernels import REPLAYED, Code, CompiledBlock
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["compiled_block"]

Grads = list[Tensor | None]
Made = dict[str, Tensor]
def compiled_block(tape: Tape, run: LayerWorkload, block: CompiledBlock, x: Tensor, *tables: Tensor) -> Tensor:
    """Output of a compiled `block` for `x` [b, s / tp, hidden], in x's shape: one autograd node.

    `tables`: rotary tables that are given to it and kept.
    """
    code, params, needs = Code(tape, run, block), list(run.params.values()), x.node is not None

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        assert grad is not None
        made = dict(zip(("x", *table_names, *kept_names), saved, strict=True))
        saved.clear()
        _tables = [made.pop(name) for name in table_names]
        to = _backward(code, grad, made)
        return [to.pop("x") if needs else None, *(to[param.name] for param in params)]

    table_names = tuple(f"table{number}" for number in range(len(tables)))
    kept: Made = {}
    node = tape.node((x, *params), (x, *tables), backward)
    out = _forward(code, code.kept if node is not None else frozenset(), kept, x)
    kept_names = tuple(kept)
    tape.save(node, *kept.values())
    out.node = node
    return out


# ---- forward --------------------------------------------------------------------------------------------------------
def _forward(code: Code, keeps: frozenset[str], kept: Made, x: Tensor) -> Tensor:
    """The output; `kept` gets what `keeps` names. Both halves' outputs are added over one of them that is not kept."""
    mixed = _attention(code, keeps, kept, x)
    product = _product(code, keeps, kept, x)
    held = [product] if code.pipelined else []  # an operator's inputs live as long as it runs
    made = [code.product("w2", product)]
    del product
    hidden = code.scattered(made.pop(), "feed_forward_out", of_product=True)
    held.clear()
    return hidden if "wo" in keeps else mixed


def _keep(keeps: frozenset[str], kept: Made, name: str, made: Tensor) -> Tensor:
    if name in keeps:
        kept[name] = made
    return made


def _attention(code: Code, keeps: frozenset[str], kept: Made, x: Tensor) -> Tensor:
    q, k, v = _heads(code, keeps, kept, code.norm(x, "norm1"))
    repeats = code.block.repeats
    if repeats == 1 or "k" not in keeps:
        _keep(keeps, kept, "wv", v)
    q = _keep(keeps, kept, "q", code.turned(q, "q"))
    k = _keep(keeps, kept, "k", code.turned(k, "k", repeats))
    if repeats > 1:  # what attention's backward reads, where its inputs are kept
        v = code.repeated(v, "v", repeats)
        if "k" in keeps:
            _keep(keeps, kept, "wv", v)
    out, log = code.attention(q)
    _keep(keeps, kept, "attention", out)
    _keep(keeps, kept, "log_sum_exp", log)
    del q, k, v, log
    return _keep(keeps, kept, "wo", _mixed(code, out))


def _mixed(code: Code, heads: Tensor) -> Tensor:
    """Tensor that attention adds to the residual stream: the output projection of `heads`, scattered."""
    return code.scattered(code.product("wo", code.read(heads, "attention_fp8")), "attention_out", of_product=True)


def _heads(code: Code, keeps: frozenset[str], kept: Made, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    names = "wq", "wk", "wv"
    casts = code.beside(*names)
    whole, operands = code.gathered_casts(normed, "attention_in", len(names))
    _keep(keeps, kept, "norm1", whole)
    if not code.gathers_beside:
        del normed
    del whole
    q, k, v = (_keep(keeps, kept, name, code.product(name, operands[0], casts=not casts)) for name in names)
    return q, k, v


def _gate(code: Code, keeps: frozenset[str], kept: Made, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of w1 and w3, from the norm of the hidden state."""
    normed, casts = code.norm(x, "norm2"), code.beside("w1", "w3")
    whole, operands = code.gathered_casts(normed, "feed_forward_in")
    _keep(keeps, kept, "norm2", whole)
    if not code.gathers_beside:
        del normed
    del whole
    gate, up = (_keep(keeps, kept, name, code.product(name, operands[0], casts=not casts)) for name in ("w1", "w3"))
    return gate, up


def _product(code: Code, keeps: frozenset[str], kept: Made, x: Tensor) -> Tensor:
    """Input of w2: written over w3's output, unless that is kept or w2 reads fp8."""
    gate, up = _gate(code, keeps, kept, x)
    if code.fp8:
        return code.read(gate, "product_fp8")
    return _keep(keeps, kept, "product", code.fused(gate, "product")) if "w3" in keeps else up


# ---- backward -------------------------------------------------------------------------------------------------------
def _backward(code: Code, grad: Tensor, made: Made) -> Made:
    """Gradients of the input ("x") and of every parameter, from that of the output. `made` is emptied on the way."""
    to: Made = {}
    x = made.pop("x")
    at_once = code.pipelined or (code.block.scales_rows and (code.run.tp > 1 or "attention" in made))
    first = [*code.back_through("w2", grad, "grad_feed_forward_out")] if at_once else []  # no other input
    if "attention" not in made:
        _again(code, made, x)
    if "w3" not in made:
        if "wo" not in made:
            made["wo"] = _mixed(code, made["attention"])
        _normed, casts = code.norm(x, "norm2"), code.beside("w3")
        made["norm2"] = code.gathered(_normed, "feed_forward_in")
        if code.block.scales_rows:
            del _normed
            made["w3"] = _up_by_rows(code, x, made)
        else:
            made["w3"] = code.product("w3", made["norm2"], casts=not casts)
            del _normed, casts
    _of_mlp(code, first or [*code.back_through("w2", grad, "grad_feed_forward_out")], made, to)
    _of_attention(code, x, made, to)
    for weight in code.run.params.values():
        if len(weight.shape) == 1:
            to[weight.name] = code.tape.empty(weight.shape, weight.dtype, "grad_weight")
    return to


def _up_by_rows(code: Code, x: Tensor, made: Made) -> Tensor:
    """Output of w3 again; the norm is cast by columns too, for gradients of weights."""
    whole = made.pop("norm2")
    row = code.read(whole, "norm2_fp8")
    made["norm2"] = code.norm_columns(whole, x)
    del whole
    return code.product("w3", row)


def _again(code: Code, made: Made, x: Tensor) -> None:
    """Everything up to the products that the MLP's gate needs."""
    keeps = REPLAYED if code.mixer.qk_norm else REPLAYED - {"wq", "wk"}
    _attention(code, keeps, made, x)
    _gate(code, keeps, made, x)
    if code.block.scales_rows:
        made["norm2"] = code.norm_columns(made.pop("norm2"), x)


def _of_mlp(code: Code, through: list[Tensor], made: Made, to: Made) -> None:
    """Ends with the gradient of the second norm's output, `made["grad_norm2"]`.

    `through`: gradients of w2's output, gathered, and of its input; the list gets empty.
    """
    if code.block.scales_rows:
        _of_mlp_by_rows(code, through, made, to)
        return
    of_gate, of_up = _of_gate(code, through, made, to)
    normed = made.pop("norm2")
    weights = [code.weight(name).name for name in ("w1", "w3")]
    to[weights[1]] = code.to_weight("w3", of_up, normed)
    first = code.to_input("w3", of_up)
    del of_up
    to[weights[0]] = code.to_weight("w1", of_gate, normed)
    del normed
    second = code.to_input("w1", of_gate)
    del of_gate
    made["grad_norm2"] = code.scattered(first, "grad_feed_forward_in")
    made["grad_norm2_too"] = second


def _of_mlp_by_rows(code: Code, through: list[Tensor], made: Made, to: Made) -> None:
    """`_of_mlp` with a scale a row: the gate's gradient is written over its output and cast twice, w3's only cast."""
    of_product, grad = through.pop(), through.pop()
    written = code.copied(made["w1"], "silu")
    product, up_rows, up_columns, gate_rows = code.gate_by_rows(of_product)
    columns = code.columns(grad, "grad_columns")
    del grad, of_product, written, made["w3"]
    to[code.weight("w2").name] = code.to_weight("w2", columns, product)
    del columns, product
    first = code.to_input("w3", up_rows)
    del up_rows
    second = code.to_input("w1", gate_rows)
    del gate_rows
    normed = made.pop("norm2")
    to[code.weight("w3").name] = code.to_weight("w3", up_columns, normed)
    del up_columns
    gate_columns = code.columns(made.pop("w1"), "grad_w1_columns")
    to[code.weight("w1").name] = code.to_weight("w1", gate_columns, normed)
    del gate_columns, normed
    made["grad_norm2"] = code.scattered(first, "grad_feed_forward_in")
    made["grad_norm2_too"] = second


def _of_gate(code: Code, through: list[Tensor], made: Made, to: Made) -> tuple[Tensor, Tensor]:
    """Gradients of w1's and w3's outputs; a product that was not kept is made with them."""
    down = code.weight("w2").name
    of_product, gathered = through.pop(), [through.pop()]
    grad = code.by_rows(gathered[0])
    if "product" in made:
        to[down] = code.to_weight("w2", grad, made.pop("product"))
        of_gate = code.fused(made.pop("w1"), "grad_w1")
        del made["w3"]
        return of_gate, of_product  # written over it
    product, of_gate, of_up = (_of_gate_in_fp8 if code.fp8 else _of_gate_fused)(code, of_product)
    gathered.append(made["norm2"])
    made["norm2"] = code.by_rows(made["norm2"])
    gathered.clear()
    del of_product, made["w1"], made["w3"]
    to[down] = code.to_weight("w2", grad, product)
    return of_gate, of_up


def _of_gate_fused(code: Code, of_product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    product, of_gate, of_up = (code.fused(of_product, name) for name in ("product", "grad_w1", "grad_w3"))
    return product, of_gate, of_up


def _of_gate_in_fp8(code: Code, of_product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest value must be known before a cast: the product and the gate's gradient are written out."""
    _written = code.fused(of_product, "product"), code.fused(of_product, "grad_gate", "fp32")
    product, of_gate, of_up, _other = (code.read(of_product, name) for name in (
        "product_fp8", "grad_w1_fp8", "grad_w3_fp8", "grad_w3_fp8"))
    return product, of_gate, of_up


def _of_attention(code: Code, x: Tensor, made: Made, to: Made) -> None:
    """From the gradient of the second norm to that of the input."""
    of_hidden = code.norm_backward(made.pop("grad_norm2"))
    del made["grad_norm2_too"]
    whole, of_mixed = code.back_through("wo", of_hidden, "grad_attention_out")
    heads = made["attention"]
    heads = code.columns(heads, "attention_columns") if code.block.scales_rows else code.read(heads, "attention_fp8")
    to[code.weight("wo").name] = code.to_weight("wo", code.columns(whole, "grad_columns"), heads)
    del whole, heads, made["wo"]
    if "norm1" not in made:
        _heads_again(code, x, made)
    of_q, of_k, of_v = code.to_heads(made.pop("q"), made.pop("k"))
    del of_mixed, made["attention"], made["log_sum_exp"], made["wv"]
    normed = code.norm_columns(made.pop("norm1"), x)
    _others = [code.empty_copy(normed, "norm_columns") for _ in ("wq", "wk")]
    of_k, of_v = code.added_up(of_k, "grad_wk"), code.narrow(code.added_up(of_v, "grad_wv"))
    sums = code.through(to, "wv", of_v, normed)
    del of_v
    of_q = code.narrow(code.turned(of_q, "grad_wq"))
    more = code.through(to, "wq", of_q, normed)
    del of_q
    of_k = code.narrow(code.turned(of_k, "grad_wk"))
    last = code.through(to, "wk", of_k, normed)
    del of_k, normed, _others
    sums = code.scattered(sums, "grad_attention_in")
    to["x"] = code.norm_backward(sums)
    del more, last


def _heads_again(code: Code, x: Tensor, made: Made) -> None:
    """The first norm and rotated queries and keys, of the products that were kept."""
    made["norm1"] = code.gathered(code.norm(x, "norm1"), "attention_in")
    made["q"] = code.turned(made.pop("wq"), "q")
    made["k"] = code.turned(code.product("wk", made["norm1"]), "k", code.block.repeats)
    if code.block.repeats > 1:
        made["wv"] = code.repeated(made["wv"], "v", code.block.repeats)
