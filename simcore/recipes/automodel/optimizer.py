"""Optimizer and loss of an Automodel recipe, by the names of their classes."""

from __future__ import annotations

from typing import Final

from simcore.recipes.automodel.dion import names_dion, read_dion
from simcore.recipes.automodel.flash_adam import names_flash_adam, read_flash_adam
from simcore.recipes.automodel.fused_adam import names_fused_adam, read_fused_adam
from simcore.recipes.automodel.model import BY_BACKEND
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.optimizers import read_decay
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, On, Says, Unmodelled, read_rows

__all__ = ["LOSSES", "OPTIMIZERS", "OPTIMIZER_ROWS", "read_implementation", "read_loss",
           "read_optimizer"]

OPTIMIZERS: Final = {
    "torch.optim.Adam": "adam", "torch.optim.AdamW": "adamw", "torch.optim.SGD": "sgd", "lion_pytorch.Lion": "lion",
    "torch.optim.Adafactor": "adafactor", "torch.optim.RMSprop": "rmsprop", "torch.optim.Adagrad": "adagrad"}
LOSSES: Final = {"MaskedCrossEntropy": "masked_fp32", "FusedLinearCrossEntropy": "cut",
                  "TEParallelCrossEntropy": "te_inplace", "ChunkedCrossEntropy": "chunked"}
OPTIMIZER_ROWS: Final = (
    Says("optimizer._target_", "training.optimizer.name", "text", OPTIMIZERS, what="optimizer"),
    Says("optimizer.momentum", "training.optimizer.momentum", "number"),
    Off("optimizer.amsgrad", "a third moment"),
    Idle(tuple(f"optimizer.{name}" for name in (
        "lr", "betas", "eps", "epsilon", "weight_decay", "adam_w_mode", "bias_correction", "dampening", "nesterov",
        "maximize", "decoupled_weight_decay", "beta2_decay", "d", "alpha", "lr_decay", "initial_accumulator_value")),
        "values, not tensors"),
    Off("optimizer.centered", "a mean of gradients"),
    Off("optimizer.use_triton", "a kernel of Triton"),
    Off("optimizer.differentiable", "an optimizer through which gradients flow"),
    Unmodelled(("optimizer.capturable",), "counts of steps that stay on the device: a few bytes"),
    Unmodelled(("optimizer.param_group_overrides.*",), "parameters are updated as one group"),
)
_LOSS_ROWS: Final = (
    Says("loss_fn.chunk_len", "", idle={512: "the default"}, words={None: None}, what="chunks of another length:"),
    Says("loss_fn.impl", "", "text", idle={"cce": "the default (0.7.0)"}, words={None: None},
         what="cut cross entropy by"),
    On("loss_fn.compile", "chunks that are not compiled"),
    Idle(("loss_fn.ignore_index", "loss_fn.reduction"), "which tokens count"),
    Unmodelled(("loss_fn.logit_softcapping",), "logits that a tanh bounds within the kernel (components/loss/"
               "linear_ce.py:247): its time is not counted", (0,)),
)


def read_optimizer(reader: Reader, draft: Draft) -> None:
    """Reads the block `optimizer`."""
    if names_fused_adam(reader.look("optimizer._target_")):
        read_fused_adam(reader, draft, "optimizer._target_", "optimizer.")
        return
    if names_flash_adam(reader.look("optimizer._target_")):
        read_flash_adam(reader, draft)
        return
    if names_dion(reader.look("optimizer._target_")):
        read_dion(reader, draft)
        return
    name = OPTIMIZERS.get(str(reader.look("optimizer._target_")), "")
    if name == "lion":  # which takes no such switches
        draft.default("training.optimizer.implementation", "for_loop", "lion-pytorch 0.2.5", "lion_pytorch.py")
    else:
        read_implementation(reader, draft, "optimizer.")
    read_rows(reader, draft, OPTIMIZER_ROWS)
    read_decay(reader, draft, name, "optimizer.weight_decay")
    if draft.refuses("optimizer._target_"):
        draft.idle(reader.matching("optimizer.*"), "settings of an optimizer that is refused")


def read_implementation(reader: Reader, draft: Draft, at: str) -> None:
    """Reads torch's switches `fused` and `foreach` of an optimizer, whose keys begin with `at`."""
    foreach, fused = reader.flag(f"{at}foreach"), reader.flag(f"{at}fused")
    if fused is not None and fused.value:
        draft.put("training.optimizer.implementation", fused, "fused")
        draft.use(foreach, why="fused goes before it")
    elif foreach is not None:
        draft.put("training.optimizer.implementation", foreach, "foreach" if foreach.value else "for_loop")
        draft.use(fused, why="beside foreach, which decides")
    else:
        draft.idle(fused, "the default")


def read_loss(reader: Reader, draft: Draft, family: str) -> None:
    """Reads the block `loss_fn`; stages of some families (`family`: the model's) give no hidden states to a loss."""
    target = reader.text("loss_fn._target_")
    name = target.value.rpartition(".")[2] if target else ""
    if target is not None and name not in LOSSES:
        draft.refuse(target, f"loss {name}")
        draft.idle(reader.matching("loss_fn.*"), "settings of a loss that is refused")
        return
    upcast = reader.flag("loss_fn.fp32_upcast")
    stages = draft.values.get("mesh", {}).get("pp", 1)
    if name == "FusedLinearCrossEntropy" and stages > 1 and family in BY_BACKEND:
        draft.infer("training.loss", "masked_fp32", f"{name} is replaced by MaskedCrossEntropy over pipeline stages",
                    target, source="recipes/llm/train_ft.py _maybe_downgrade_loss_fn")
        draft.idle(upcast, f"{name} takes none")
    elif name == "MaskedCrossEntropy" and upcast is not None:
        draft.infer("training.loss", "masked_fp32" if upcast.value else "masked", f"{name} with fp32_upcast "
                    f"{upcast.value}", upcast, target, source="components/loss/masked_ce.py")
    else:
        draft.put("training.loss", target, LOSSES.get(name))
        draft.idle(upcast, f"{name} takes none")
    read_rows(reader, draft, _LOSS_ROWS)
