"""Keys of a scenario as a real framework is told them: every key is translated, or known to change nothing, or refused.

A key that the real side were not told would make both sides agree about another job than the user's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.errors import NotYet, Problem
from simcore.frameworks.setup import configuration
from simcore.inputs.scenario import Scenario
from simcore.placement.framework import Framework
from simcore.placement.job import Job

__all__ = ["TORCH_DTYPES", "Settings", "settings_of_job"]

TORCH_DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Our names of types, and torch's."""
_NEVER: Final = frozenset({"name", "topology", "limits", "environment", "checkpoint", "training.num_tokens",
                    "training.num_samples", "training.num_epochs", "training.dataset_size", "training.lora.alpha"})
"""Keys and blocks that change neither placement, nor collectives, nor tensors."""


@dataclass(frozen=True)
class Settings:
    """A job, its framework's table, and its keys with the framework's defaults in the place of `auto`."""

    job: Job
    framework: Framework
    values: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        """Value of a dotted key; None if the scenario has no such key."""
        return self.values.get(key)

    def option(self, name: str) -> Any:
        """Framework option as the user wrote it, None if there is none."""
        return self.job.scenario.framework_options.get(name)

    def fields(self) -> dict[str, Any]:
        """All fields of the model's configuration, without names that only a hub knows."""
        return {name: value for name, value in configuration(self.job.scenario).items() if not name.startswith("_")}

    def expect(self, key: str, value: Any, served: tuple[Any, ...]) -> None:
        """Raises NotYet if a key has a value that the real side cannot be told."""
        if value not in served:
            raise self.not_told(key, value)

    def not_told(self, key: str, value: Any) -> NotYet:
        """Error for a value that the real side cannot be told."""
        return NotYet(Problem(self.job.scenario.where(*key.split(".")), f"not yet: verify with {key}: {value}"))

    def expect_told(self, told: frozenset[str], what: str) -> None:
        """Raises NotYet for the keys that are neither in `told` nor at their default: `what` is not told them."""
        scenario = self.job.scenario
        plain = dict(_flat(Scenario.model_validate(_LEAST).normalised()))
        chosen = {key: value for key, value, _ in self.framework.defaults}
        problems = [Problem(scenario.where(*key.split(".")), f"not yet: verify does not tell {what} {key}: {value}")
                    for key, value in _flat(scenario.normalised())
                    if not _covered(key, told | _NEVER) and value not in (plain.get(key), chosen.get(key))]
        if problems:
            raise NotYet(problems)


_LEAST: Final = {"name": "least", "model": "-", "framework": "-", "topology": "-", "training": {"seq_len": 1}}


def settings_of_job(job: Job, framework: Framework) -> Settings:
    """Returns the keys of a job with what its framework chose."""
    values = dict(_flat(job.scenario.normalised()))
    for key, value, _ in framework.defaults:
        if values.get(key) in (None, "auto"):
            values[key] = value
    return Settings(job, framework, values)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each value of nested maps with its dotted key; options of a framework one by one."""
    for name, value in values.items():
        if isinstance(value, Mapping) and prefix + name != "model":
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _covered(key: str, keys: frozenset[str]) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:n]) in keys for n in range(1, len(parts) + 1))
