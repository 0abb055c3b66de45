"""Automodel's products in 8 bits allocate what the same modules of TransformerEngine do under Megatron.

Those are held by Megatron's goldens and measured runs (tests/validation); TransformerEngine needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simcore.models.blocks import LayerKind
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.te_fp8 import padded, te_grouped, te_linear, unpadded
from simcore.operators.megatron.ops.context import Context
from simcore.operators.megatron.ops.fp8 import grouped_fp8, plain_fp8
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import Node, Param, Tape, Tensor

ROWS, INPUTS, OUTPUTS, EXPERTS = 192, 256, 384, 4
RECIPES = [("tensorwise", True), ("tensorwise", False), ("blockwise", True), ("mxfp8", False)]
Made = Callable[[Tape, Tensor], Tensor]


def events(made: Made) -> list[int]:
    """Changes of memory of a product's forward and backward, in order; the input and its gradient are others'."""
    tape = Tape({}, {})
    x = tape.external((ROWS, INPUTS), "bf16", 0, 0)
    x.node = Node()
    out = made(tape, x)
    out.disown()
    forward = tape.cut()
    tape.seed(out, tape.external(out.shape, "bf16", 1, 0))
    tape.backward()
    backward = tape.cut()
    return [row[3] for section in (forward, backward) for row in section.rows if row[0] in (Op.ALLOC, Op.FREE)]


def workload(options: Any, params: dict[str, Param]) -> LayerWorkload:
    return LayerWorkload(1, ROWS, "bf16", params, options=options)


def env(tape: Tape, recipe: str, *, transposes: bool, balanced: bool = False) -> Env:
    options = AutomodelOptions(fp8_recipe=recipe, fp8_transposes=transposes, fake_balanced_gate=balanced)
    return Env(tape, workload(options, {}), options, fp8=True)


def megatrons(recipe: str, weight: Param, *, transposes: bool, grouped: bool) -> list[int]:
    """Changes of memory of a module that has cast its weight before; gradients are not added into main gradients."""
    options = MegatronOptions(fp8_recipe=recipe, fp8_transposes=transposes, keeps_fp8_weights=True,
                              gradient_accumulation_fusion=False)
    run = workload(options, {"fc.weight": weight})
    kind = LayerKind("one", "llama", INPUTS, fp8=True)

    def made(tape: Tape, x: Tensor) -> Tensor:
        c = Context(tape, run, kind)
        return grouped_fp8(c, "fc", x, EXPERTS) if grouped else plain_fp8(c, "fc", x)

    return events(made)


@pytest.mark.parametrize(("recipe", "transposes"), RECIPES)
@pytest.mark.parametrize("trainable", [True, False])
def test_a_linear_allocates_what_megatron_s_does(recipe: str, *, transposes: bool, trainable: bool) -> None:
    weight = Param("fc.weight", (OUTPUTS, INPUTS), "bf16", trainable=trainable, grad_category="unreduced_grad")
    mine = events(lambda tape, x: te_linear(env(tape, recipe, transposes=transposes), x, weight, None, "fc"))
    assert mine == megatrons(recipe, weight, transposes=transposes, grouped=False)


def test_a_linear_with_one_scale_keeps_a_byte_an_element_of_its_input() -> None:
    """Rows and columns of the input, the output, and columns stay; then both of the gradient, gradients in bf16."""
    weight = Param("w", (OUTPUTS, INPUTS), "bf16", trainable=True)
    made, given = ROWS * INPUTS + 4, ROWS * OUTPUTS + 4
    assert events(lambda tape, x: te_linear(env(tape, "tensorwise", transposes=True), x, weight, None, "fc")) == [
        made, made, 2 * ROWS * OUTPUTS, -made, given, given, 2 * ROWS * INPUTS, 2 * OUTPUTS * INPUTS, -given, -given,
        -2 * ROWS * OUTPUTS, -made]


@pytest.mark.parametrize(("recipe", "transposes"), RECIPES)
def test_experts_allocate_what_megatron_s_do(recipe: str, *, transposes: bool) -> None:
    mine = Param("w", (EXPERTS, INPUTS, OUTPUTS), "bf16", trainable=True)
    theirs = Param("fc.weight", (EXPERTS, OUTPUTS, INPUTS), "bf16", trainable=True, grad_category="unreduced_grad")
    assert events(lambda tape, x: te_grouped(env(tape, recipe, transposes=transposes), x, mine, "fc")) == megatrons(
        recipe, theirs, transposes=transposes, grouped=True)


@pytest.mark.parametrize(("recipe", "balanced", "moved"), [
    ("tensorwise", True, 0), ("tensorwise", False, ROWS), ("mxfp8", True, 256), ("mxfp8", False, 256)])
def test_rows_are_copied_to_the_alignment_of_a_product(recipe: str, *, balanced: bool, moved: int) -> None:
    """48 rows an expert: a multiple of 16, but not of mxfp8's 32. A router gives no even number."""
    tape = Tape({}, {})
    around = env(tape, recipe, transposes=False, balanced=balanced)
    x = tape.external((ROWS, INPUTS), "bf16", 0, 0)
    wide = padded(around, x, EXPERTS)
    assert wide.shape[0] == (moved or ROWS)
    assert (wide is x) == (moved == 0)
    back = unpadded(around, wide, ROWS)
    assert back.shape == x.shape
    assert (back is x) == (moved == 0)


def test_a_bias_has_a_gradient_of_its_own() -> None:
    weight, bias = Param("w", (OUTPUTS, INPUTS), "bf16", trainable=True), Param("b", (OUTPUTS,), "bf16", trainable=True)
    made = events(lambda tape, x: te_linear(env(tape, "mxfp8", transposes=False), x, weight, bias, "fc"))
    assert 2 * OUTPUTS in made
