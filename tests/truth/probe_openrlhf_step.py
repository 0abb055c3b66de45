"""Tensors that OpenRLHF's PPO and DPO trainers make of logits, step after step, on one CPU.

    python tests/truth/probe_openrlhf_step.py CLONE > tests/truth/openrlhf/step.json
    python tests/truth/probe_openrlhf_step.py CLONE drawn > tests/truth/openrlhf/drawn-step.json

`CLONE`: git directory of OpenRLHF, whose own code runs at each of RELEASES: `ActorPPOTrainer.training_step`
(`openrlhf/trainer/ray/ppo_actor.py`) around `Actor.forward`, with its loss; `PolicyModelActor.forward`, the pass that
makes log-probabilities; `DPOTrainer.concatenated_forward` and `DPOLoss`, with a reference model. Events are those of
`probe_openrlhf.py`: allocations and frees of the logits' size ("+", "-") and of twice that, fp32 ("++", "--"), of the
second step. `drawn`: releases, kinds of step and shapes of logits by a seed. `entropy`: with `actor.entropy_coef`;
its function, which upstream compiles, is given as one that keeps logits and makes one gradient. `raises`: what
autograd says. `step`: until the function has returned.
"""

from __future__ import annotations

import json
import random
import sys
import types
from types import SimpleNamespace
from typing import Any

import probe_openrlhf as base
import torch
from probe_openrlhf import TOKENS, VOCAB, Head, cross_entropy_loss, defined, source
from probe_verl import traced

RELEASES = ("v0.8.9", "v0.11.0")
SEED, COUNT = 771903, 44
CASES = {"plain": {}, "divided": {"temperature": 0.8}, "entropy": {"entropy": 0.01}, "entropy logged": {"entropy": 0.0},
         "entropy, divided": {"entropy": 0.01, "temperature": 0.8},
         "entropy logged, divided": {"entropy": 0.0, "temperature": 0.8}}


class Entropy(torch.autograd.Function):
    """Stands for a compiled entropy: saves logits, and makes one gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        ctx.save_for_backward(logits)
        return torch.zeros(logits.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.empty_like(ctx.saved_tensors[0])


def signs(sizes: list[int], size: int) -> list[str]:
    return [("+" if one > 0 else "-") * (abs(one) // size) for one in sizes if abs(one) in (size, 2 * size)]


def space_of(clone: str, release: str) -> dict[str, Any]:
    stand_in = types.ModuleType("flash_attn.ops.triton.cross_entropy")
    stand_in.cross_entropy_loss = cross_entropy_loss  # type: ignore[attr-defined]
    for name in ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[stand_in.__name__] = stand_in
    space: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "ABC": object,
                             "compute_entropy": Entropy.apply}
    defined(source(clone, release, "openrlhf/models/utils.py"), space, "log_probs_from_logits", "masked_mean",
            "compute_approx_kl")
    names = ("SFTLoss", "PolicyLoss", "ValueLoss", "DPOLoss", "aggregate_loss")
    defined(source(clone, release, "openrlhf/models/loss.py"), space, *names)
    defined(source(clone, release, "openrlhf/models/actor.py"), space, "Actor")
    return space


def actor_of(space: dict[str, Any], batch: int, temperature: float) -> Any:
    actor = space["Actor"](Head(batch))
    actor.packing_samples, actor.temperature, actor.is_vlm = False, temperature, False
    return actor


def arguments(release: str, entropy: float | None) -> SimpleNamespace:
    """Arguments as the release names them, of a trainer without KL loss."""
    return SimpleNamespace(
        actor=SimpleNamespace(entropy_coef=entropy, aux_loss_coef=0.0), train=SimpleNamespace(
            dynamic_batch_enable=False), algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False, init_coef=0.0)),
        entropy_loss_coef=entropy, use_kl_loss=False, use_dynamic_batch=False, aux_loss_coef=0.0, init_kl_coef=0.0)


def trainer_of(space: dict[str, Any], actor: Any, args: SimpleNamespace) -> SimpleNamespace:
    strategy = SimpleNamespace(ring_attn_group=None, backward=lambda loss, *_, **__: loss.backward(),
                               optimizer_step=lambda *_, **__: None, get_grad_norm=lambda *_: 0.0, args=args)
    loss = space["PolicyLoss"]()
    return SimpleNamespace(
        actor=actor, strategy=strategy, args=args, actor_loss_fn=loss, aux_loss=False, ema_model=None, actor_optim=None,
        replay_buffer=None, actor_scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]))


def experience_of(batch: int) -> Any:
    ids, mask = torch.randint(0, VOCAB, (batch, TOKENS)), torch.ones(batch, TOKENS, dtype=torch.long)
    actions = torch.ones(batch, TOKENS - 1)
    return SimpleNamespace(
        sequences=ids, action_mask=actions, attention_mask=mask, action_log_probs=torch.zeros(batch, TOKENS - 1),
        advantages=torch.ones(batch, TOKENS - 1), base_action_log_probs=None, rollout_log_probs=None, info={},
        mm_train_inputs=None)


def policy(clone: str, release: str, batch: int, temperature: float = 1.0, entropy: float | None = None) -> Any:
    """Events of a step of the actor's trainer."""
    space = space_of(clone, release)
    defined(source(clone, release, "openrlhf/trainer/ray/ppo_actor.py"), space, "ActorPPOTrainer")
    space |= {"get_loss_batch_info": lambda *_, **__: {}, "fields": lambda _: (), "Experience": object}
    actor, size = actor_of(space, batch, temperature), 2 * batch * TOKENS * VOCAB
    trainer, taken = trainer_of(space, actor, arguments(release, entropy)), experience_of(batch)
    found: list[int] = []
    for _ in range(2):
        actor.model.weight.grad = actor.model.hidden.grad = None
        try:
            _, found = traced(lambda: space["ActorPPOTrainer"].training_step(trainer, taken, 0.0, 0))
        except RuntimeError as error:
            return {"raises": str(error).split(":")[0][:90]}
    return {"step": signs(found, size)}


def scored(clone: str, release: str, batch: int, temperature: float) -> list[str]:
    """Events of a pass that makes log-probabilities."""
    space = space_of(clone, release)
    actor, size = actor_of(space, batch, temperature), 2 * batch * TOKENS * VOCAB
    taken = experience_of(batch)

    def forward() -> Any:
        with torch.no_grad():
            return actor.forward(taken.sequences, taken.action_mask, taken.attention_mask, ring_attn_group=None)
    forward()
    return signs(traced(forward)[1], size)


def pairs(clone: str, release: str, batch: int) -> dict[str, list[str]]:
    """Events of DPO: the policy's and the reference's passes over chosen and rejected, loss, backward."""
    space = space_of(clone, release)
    defined(source(clone, release, "openrlhf/trainer/dpo_trainer.py"), space, "DPOTrainer")
    made = space["DPOTrainer"]
    args = SimpleNamespace(packing_samples=False)
    me = SimpleNamespace(strategy=SimpleNamespace(ring_attn_group=None), packing_samples=False, args=args,
                         tokenizer=SimpleNamespace(pad_token_id=0))
    for name in ("concatenated_inputs", "_get_batch_logps"):
        if name in vars(made):
            setattr(me, name, vars(made)[name].__get__(me))
    model, reference = actor_of(space, 2 * batch, 1.0), actor_of(space, 2 * batch, 1.0)
    for one in reference.model.parameters():
        one.requires_grad_(False)
    reference.model.hidden.requires_grad_(False)
    ids, mask = torch.randint(1, VOCAB, (batch, TOKENS)), torch.ones(batch, TOKENS, dtype=torch.long)
    size, loss_of, found = 4 * batch * TOKENS * VOCAB, space["DPOLoss"](0.1), {}
    kept: dict[str, Any] = {}

    def passed(name: str, one: Any) -> None:
        kept[name] = made.concatenated_forward(me, one, ids, mask, ids, mask, [4] * batch)

    def refer() -> None:
        with torch.no_grad():
            passed("reference", reference)

    for _ in range(2):
        model.model.weight.grad = model.model.hidden.grad = None
        _, forward = traced(lambda: passed("policy", model))
        _, referred = traced(refer)
        loss, *_ = loss_of(*kept["policy"][:2], *kept["reference"][:2])
        _, undone = traced(lambda loss=loss: loss.backward())
        del loss
        found = {"forward": signs(forward, size), "reference": signs(referred, size), "backward": signs(undone, size)}
    return found


def drawn(clone: str) -> list[dict[str, Any]]:
    """Rows of steps whose release, kind and shape of logits are drawn."""
    rng, rows = random.Random(SEED), []
    for _ in range(COUNT):
        row: dict[str, Any] = {
            "release": rng.choice(RELEASES), "kind": rng.choice(("pairs", "plain", "divided", "entropy")),
            "batch": rng.randint(1, 5), "tokens": rng.choice((24, 40, 72, 96)),
            "vocab": rng.choice((1_000, 2_304, 4_001))}
        for module in (base, sys.modules[__name__]):
            vars(module).update(TOKENS=row["tokens"], VOCAB=row["vocab"])
        made = pairs if row["kind"] == "pairs" else policy
        rows.append(row | {"found": made(clone, row["release"], row["batch"], **CASES.get(row["kind"], {}))})
    return rows


def main() -> None:
    if sys.argv[2:] == ["drawn"]:
        print(json.dumps({"torch": torch.__version__, "rows": drawn(sys.argv[1])}))
        return
    clone, releases = sys.argv[1], {}
    for release in RELEASES:
        releases[release] = {
            "policy": {f"{name}, {batch}": policy(clone, release, batch, **case)
                       for name, case in CASES.items() for batch in (1, 2)},
            "scored": {f"{name}, {batch}": scored(clone, release, batch, temperature)
                       for name, temperature in (("plain", 1.0), ("divided", 0.8)) for batch in (1, 2)},
            "pairs": {str(batch): pairs(clone, release, batch) for batch in (1, 2)}}
    print(json.dumps({"torch": torch.__version__, "releases": releases}, indent=1))


if __name__ == "__main__":
    main()
