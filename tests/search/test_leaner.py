"""Options that lower memory: which there are for a framework, and several of them on a layout that nearly fits."""

from __future__ import annotations

from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.search.judge import Sized, judged
from simcore.search.leaner import alone, losses, together
from simcore.simulate import simulate
from simcore.studio.question import Question
from studio_jobs import JOB


def base(framework: str, usable: str = "70 GiB") -> Scenario:
    return Question.of({"values": {**JOB, "framework": framework, "limits": {"usable_memory": usable}}}).scenario()


def test_losses_are_those_that_the_framework_has_for_the_model() -> None:
    names = ("ddp", "automodel", "megatron")
    asked = {name: [one["training.loss"] for one in losses(base(name), {})] for name in names}
    assert asked == {"ddp": ["cut", "liger", "chunked"], "automodel": ["cut", "chunked"], "megatron": ["te"]}
    assert {"training.loss": "cut"} in alone(base("ddp"), {})
    assert {"training.loss": "liger"} not in alone(base("ddp"), {})


def test_several_options_make_a_layout_fit_that_none_alone_does() -> None:
    layout = {"mesh.dp_shard": 1, "training.recompute": "none", "training.micro_batch_size": 1}
    job = base("fsdp2", "24 GiB")
    found = together(job, layout)
    assert found is not None
    keys, sized = found
    options = {"training.optimizer.implementation": "fused", "training.loss": "cut"}
    assert options.items() <= keys.items()
    report = simulate(changed(job, keys), timed=False)
    assert (report.verdict, report.highest_bytes) == ("fits", sized.peak_bytes)
    for key in options:  # none of them is idle
        fewer = {one: value for one, value in keys.items() if one != key}
        assert simulate(changed(job, fewer), timed=False).verdict != "fits", key
    assert "training.recompute" not in keys
    nearer = together(base("fsdp2", "18 GiB"), layout)
    assert nearer is not None
    assert nearer[1].verdict != "fits"
    (plain,) = judged(base("fsdp2", "18 GiB"), [layout])
    assert isinstance(plain, Sized)
    assert nearer[1].headroom_bytes > plain.headroom_bytes
