"""The exchange of tokens between experts on different ranks that Automodel's own layers run."""

from __future__ import annotations

from simcore.placement.job import Draft

__all__ = ["dispatcher_of"]


def dispatcher_of(job: Draft, options: dict[str, object]) -> str:
    """Returns the exchange of tokens; "torch" where no layer reads it: in a model without experts, and on one GPU.

    There 0.7.0 falls back with a warning (moe/layers.py:783). IllegalLayout for another one without expert parallelism.
    """
    default = "deepep" if job.mesh.ep > 1 else "torch"
    given = job.auto("framework_options.dispatcher", str(options.get("dispatcher", "auto")), default,
                     "0.7.0 models/common/utils.py: DeepEP where installed and ep > 1, else torch")
    own = job.graph.implementation == "automodel"
    if not job.has_experts or job.mesh.size == 1 or not own:
        return "torch"
    if given != "torch" and job.mesh.ep == 1:
        raise job.illegal("framework_options.dispatcher", f"{given} without expert parallelism: 'GroupedExpertsDeepEP' "
                          "object has no attribute 'token_dispatcher'",
                          "0.7.0 moe/experts.py:1568; moe/parallelizer.py:1241 makes it where ep > 1")
    return given
