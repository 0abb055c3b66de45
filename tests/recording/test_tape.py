"""The recording machine: reference counts as lifetimes, joins, checkpoints, and what survives."""

from __future__ import annotations

from functools import partial

import pytest

from simcore.operators.shared import aten
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Kernel, Node, Op, Param, Row, Tape, Tensor

SHAPE = (1, 8, 16)
NUM_BYTES = 8 * 16 * 2


@pytest.fixture
def tape() -> Tape:
    return Tape({}, {})


def source(tape: Tape, *, requires_grad: bool = True) -> Tensor:
    """A layer's input."""
    tensor = tape.external(SHAPE, "bf16", HIDDEN, -1)
    tensor.node = Node() if requires_grad else None
    return tensor


def posted(tape: Tape) -> list[tuple[str, str, int]]:
    """(owner, category, signed bytes) since the last cut."""
    names = {number: name for name, number in tape.slots.items()}
    return [(*names[row[2]], row[3]) for row in memory_rows(tape.cut().rows)]


def memory_rows(rows: tuple[Row, ...]) -> list[Row]:
    return [row for row in rows if row[0] in (Op.ALLOC, Op.FREE)]


def weight(name: str = "w", *, trainable: bool = True, exists: bool = False) -> Param:
    return Param(name, (16, 16), "bf16", trainable, grad_exists=exists)


def run_backward(tape: Tape, out: Tensor) -> None:
    grad = tape.external(out.shape, out.dtype, GRAD_HIDDEN, 1)
    tape.seed(out, grad)
    del grad
    tape.backward()


# ---- lifetimes --------------------------------------------------------------------------------------------------
def test_a_storage_dies_with_its_last_view(tape: Tape) -> None:
    x = tape.empty((4,), "fp32", "x")
    view = x.view(2, 2)
    del x
    assert posted(tape) == [("x", "activation", 16)]
    del view
    assert posted(tape) == [("x", "activation", -16)]


def test_rebinding_frees_at_that_line(tape: Tape) -> None:
    x = tape.empty((4,), "fp32", "first")
    x = tape.empty(x.shape, "fp32", "second")
    assert [amount for *_, amount in posted(tape)] == [16, 16, -16]


def test_scalars_have_bytes_and_empty_storages_have_none(tape: Tape) -> None:
    scalar, nothing = tape.empty((), "fp32", "scalar"), tape.empty((0,), "fp32", "nothing")
    assert posted(tape) == [("scalar", "activation", 4)]
    del scalar, nothing
    assert posted(tape) == [("scalar", "activation", -4)]


def test_an_external_tensor_posts_only_its_death_with_its_offset(tape: Tape) -> None:
    x: Tensor | None = source(tape)
    assert memory_rows(tape.cut().rows) == []
    x = None
    assert x is None
    assert memory_rows(tape.cut().rows) == [(Op.FREE, -1, HIDDEN, -NUM_BYTES, 0, 0)]


def test_a_disowned_tensor_posts_nothing_more(tape: Tape) -> None:
    x = tape.empty((4,), "fp32", "x")
    x.disown()
    tape.cut()
    del x
    assert posted(tape) == []


def test_renaming_holds_from_birth(tape: Tape) -> None:
    x = tape.empty((4,), "fp32", "x")
    tape.rename(x.storage, tape.slot("y", "unsharded_grad"))
    del x
    assert posted(tape) == [("y", "unsharded_grad", 16), ("y", "unsharded_grad", -16)]


def test_a_storage_of_an_earlier_section_cannot_be_renamed(tape: Tape) -> None:
    x = tape.empty((4,), "fp32", "x")
    tape.cut()
    tape.empty((8,), "fp32", "other")
    with pytest.raises(AssertionError, match="renamed"):
        tape.rename(x.storage, 0)


# ---- graph ------------------------------------------------------------------------------------------------------
def test_without_gradients_nothing_is_kept(tape: Tape) -> None:
    out = aten.silu(tape, source(tape, requires_grad=False))
    assert out.node is None
    assert [amount for *_, amount in posted(tape)] == [NUM_BYTES, -NUM_BYTES]


def test_a_node_keeps_its_input_until_it_has_run(tape: Tape) -> None:
    x = source(tape)
    middle = aten.neg(tape, x)
    out = aten.silu(tape, middle)
    del middle, x
    assert not [row for row in memory_rows(tape.cut().rows) if row[0] == Op.FREE and row[2] != HIDDEN]
    run_backward(tape, out)
    names = [(name, amount > 0) for name, _, amount in posted(tape)]
    assert names[:3] == [("grad_silu", True), ("grad_hidden_states", False), ("neg", False)]


def test_a_frozen_weight_keeps_no_input(tape: Tape) -> None:
    x = aten.neg(tape, source(tape))
    out = aten.linear(tape, x, weight(trainable=False), "linear")
    del x
    assert posted(tape)[-1] == ("neg", "activation", -NUM_BYTES)
    assert out.node is not None


def test_a_dead_branch_dies_with_what_it_saved(tape: Tape) -> None:
    x = source(tape)
    dead = aten.relu(tape, x)
    del dead
    assert posted(tape) == [("relu", "activation", NUM_BYTES), ("relu", "activation", -NUM_BYTES)]


def test_two_gradients_are_added_into_a_new_tensor(tape: Tape) -> None:
    x = source(tape)
    shared = aten.neg(tape, x)
    out = aten.add(tape, aten.silu(tape, shared), aten.exp(tape, shared))
    del shared
    tape.cut()
    run_backward(tape, out)
    events = [(name, amount > 0) for name, _, amount in posted(tape)]
    at = events.index(("grad_sum", True))
    assert {name for name, born in events[at + 1:at + 3] if not born} == {"grad_exp", "grad_silu"}
    assert x.node is not None
    assert x.node.grads[0].nbytes == NUM_BYTES


def test_nodes_run_from_the_last_made(tape: Tape) -> None:
    x = source(tape)
    a, b = aten.silu(tape, x), aten.exp(tape, x)
    out = aten.add(tape, b, a)
    tape.cut()
    run_backward(tape, out)
    births = [name for name, _, amount in posted(tape) if amount > 0]
    assert births == ["grad_exp", "grad_silu", "grad_sum"]


def test_the_weights_gradient_comes_first_and_survives(tape: Tape) -> None:
    out = aten.linear(tape, source(tape), weight(), "linear")
    tape.cut()
    run_backward(tape, out)
    events = posted(tape)
    assert [(name, category) for name, category, amount in events if amount > 0] == [
        ("w.grad", "unsharded_grad"), ("grad_linear", "backward_temp")]
    ((param, slot, num_bytes),) = tape.release_grads()
    assert (param.name, num_bytes) == ("w", 512)
    assert slot == tape.slot("w.grad", "unsharded_grad")


def test_a_gradient_that_exists_takes_the_new_one_in(tape: Tape) -> None:
    out = aten.linear(tape, source(tape), weight(exists=True), "linear")
    tape.cut()
    run_backward(tape, out)
    assert ("grad_weight", "backward_temp", -512) in posted(tape)
    assert tape.release_grads() == ()


def test_a_broadcast_gradient_is_summed_after_both_products(tape: Tape) -> None:
    out = aten.mul(tape, Param("w", (16,), "bf16", trainable=True), source(tape))
    tape.cut()
    run_backward(tape, out)
    births = [(name, amount) for name, _, amount in posted(tape) if amount > 0]
    assert births == [("grad_mul", NUM_BYTES), ("grad_mul", NUM_BYTES), ("w.grad", 32)]


def test_gradients_of_two_biases_of_one_row_are_two_tensors(tape: Tape) -> None:
    """torch 2.13 on a CPU: 128 bytes each for two biases of 64 elements, of one row as of two."""
    x = tape.external((1, 1, 16), "bf16", HIDDEN, -1)
    x.node = Node()
    first, second = (Param(name, (16,), "bf16", True) for name in ("a.bias", "b.bias"))
    out = aten.add(tape, aten.linear(tape, x, weight("a"), "a", bias=first),
                   aten.linear(tape, x, weight("b"), "b", bias=second), "sum")
    run_backward(tape, out)
    born = [name for name, _, size in posted(tape) if size == 32 and name.endswith(".grad")]
    assert sorted(born) == ["a.bias.grad", "b.bias.grad"]


def test_kernels_and_collectives_become_rows(tape: Tape) -> None:
    tape.compute(Kernel.GEMM, 10, 20)
    tape.collective("all_to_all", "ep", 30, "bf16")
    assert tape.cut().rows == ((Op.COMPUTE, 0, Kernel.GEMM, 10, 0, 20), (Op.COLLECTIVE, 0, 0, 30, 0, 0))
    assert tape.comms == {("all_to_all", "ep", "bf16"): 0}


# ---- checkpoints ------------------------------------------------------------------------------------------------
def checkpointed(tape: Tape, *, w: Param) -> Tensor:
    """silu, then a product, then a residual sum, recomputed in backward."""
    x = source(tape)

    def body() -> Tensor:
        inside = aten.linear(tape, aten.silu(tape, aten.neg(tape, x)), w, "linear")
        return aten.add(tape, x, inside)

    return tape.checkpoint(body)


def test_a_checkpoint_keeps_only_its_input(tape: Tape) -> None:
    out = checkpointed(tape, w=weight())
    alive: dict[str, int] = {}
    for name, _, amount in posted(tape):
        alive[name] = alive.get(name, 0) + amount
    assert {name: n for name, n in alive.items() if n} == {"add": NUM_BYTES}
    assert out.node is not None


def test_the_replay_stops_at_the_last_thing_that_is_saved(tape: Tape) -> None:
    out = checkpointed(tape, w=weight())
    tape.cut()
    run_backward(tape, out)
    births = [(name, category) for name, category, amount in posted(tape) if amount > 0]
    assert births[:2] == [("neg", "recompute"), ("silu", "recompute")]
    assert ("linear", "recompute") not in births


def test_what_a_replay_made_dies_as_it_is_used(tape: Tape) -> None:
    out = checkpointed(tape, w=weight())
    tape.cut()
    run_backward(tape, out)
    events = [(name, amount > 0) for name, _, amount in posted(tape)]
    assert events.index(("silu", False)) < events.index(("grad_silu", True)) < events.index(("neg", False))


def test_the_input_dies_with_the_last_node_that_needed_the_replay(tape: Tape) -> None:
    out = checkpointed(tape, w=weight())
    tape.cut()
    run_backward(tape, out)
    events = [(name, amount > 0) for name, _, amount in posted(tape)]
    assert events.count(("hidden_states", False)) == 1
    assert events.index(("neg", False)) < events.index(("grad_neg", True))


def test_a_checkpoint_that_saves_nothing_is_not_replayed(tape: Tape) -> None:
    x = source(tape)
    out = tape.checkpoint(lambda: aten.neg(tape, x))
    tape.cut()
    run_backward(tape, out)
    assert all(row[0] != Op.MARK for row in tape.cut().rows)


def test_marks_surround_the_replay(tape: Tape) -> None:
    out = checkpointed(tape, w=weight())
    tape.cut()
    run_backward(tape, out)
    assert [row[2] for row in tape.cut().rows if row[0] == Op.MARK] == [0, 1]


def test_the_saved_tensor_of_a_dead_node_counts_but_is_not_kept(tape: Tape) -> None:
    x = source(tape)

    def body() -> Tensor:
        aten.relu(tape, x)
        return aten.exp(tape, aten.neg(tape, x))

    out = tape.checkpoint(body)
    tape.cut()
    run_backward(tape, out)
    events = posted(tape)
    assert events.index(("relu", "recompute", -NUM_BYTES)) < events.index(("neg", "recompute", NUM_BYTES))
    assert ("exp", "recompute", NUM_BYTES) in events


# ---- balance ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("recompute", [False, True])
def test_every_birth_has_a_death_except_gradients(tape: Tape, recompute: bool) -> None:
    x: Tensor | None = source(tape)
    assert x is not None
    leaf = x.node
    assert leaf is not None

    def body(x: Tensor) -> Tensor:
        gate = aten.silu(tape, aten.linear(tape, x, weight("gate"), "gate"))
        return aten.add(tape, x, aten.mul(tape, gate, aten.linear(tape, x, weight("up"), "up")))

    out = tape.checkpoint(partial(body, x)) if recompute else body(x)
    x = None
    tape.rename(out.storage, HIDDEN)
    out.disown()
    forward = posted(tape)
    run_backward(tape, out)
    tape.rename(leaf.grads[0].storage, GRAD_HIDDEN)
    leaf.grads.pop(0).disown()
    grads = tape.release_grads()
    balance: dict[tuple[str, str], int] = {}
    for name, category, amount in forward + posted(tape):
        balance[name, category] = balance.get((name, category), 0) + amount
    left = {name for name, amount in balance.items() if amount}
    # HIDDEN and GRAD_HIDDEN: one is born and another dies, in different layers.
    assert left == {("gate.grad", "unsharded_grad"), ("up.grad", "unsharded_grad")}
    assert sorted(param.name for param, _, _ in grads) == ["gate", "up"]
