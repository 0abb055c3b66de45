"""The pages of `docs/` say what the code says: generated parts are current, named files exist."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.docgen.glossary import CATEGORIES, COMPONENTS, OUTSIDE, SERVED, filled, glossary
from simcore.errors import IllegalLayout, InputError, NotYet
from simcore.frameworks.registry import hooks_of, known_frameworks
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.loading import load
from simcore.inputs.scenario import parse_scenario
from simcore.models.graph import build, known_presets, model_config
from simcore.operators.registry import IMPLEMENTATIONS
from simcore.pipeline.schedule import actions
from simcore.placement.plan import Plan, place
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import OP, SLOT
from simcore.recording.tape import Op
from simcore.simulate import check
from test_structure import PACKAGES
from viz.palette import CATEGORIES as DRAWN

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TOP = ("README.md", "CONTRIBUTING.md")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """Fenced blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(name), re.MULTILINE | re.DOTALL)


# ---- generated parts ------------------------------------------------------------------------------------------------
def test_the_glossary_is_the_codes_own() -> None:
    assert text("docs/glossary.md") == glossary(), "run: python -m simcore.docgen.glossary > docs/glossary.md"


def test_the_scenarios_keys_are_the_schemas() -> None:
    page = text("docs/scenario.md")
    assert page == filled(page), "run: python -m simcore.docgen.glossary docs/scenario.md"


SMALL: dict[str, dict[str, Any]] = {
    "whole units": {"framework": "fsdp2", "mesh": {"dp_shard": 4}, "framework_options": {"reshard_after_forward": 2}},
    "checkpoints": {"framework": "fsdp2", "mesh": {"dp_shard": 4, "ep": 2}, "training": {"recompute": "full"}},
    "ignored experts": {"framework": "fsdp2", "mesh": {"dp_shard": 4, "ep": 2},
                        "framework_options": {"experts": "ignored"}},
    "fp32 parameters": {"framework": "automodel", "mesh": {"dp_shard": 4, "ep": 2}},
    "16-bit gradients": {"framework": "megatron", "mesh": {"dp_shard": 4, "ep": 2},
                         "training": {"precision": {"grad_reduce": "bf16"}}},
    "copies": {"framework": "ddp", "mesh": {"dp_replicate": 4}},
    "flat parameters": {"framework": "fsdp1", "mesh": {"dp_shard": 4}},
    "whole masters": {"framework": "zero0", "mesh": {"dp_replicate": 4}},
    "states in parts": {"framework": "zero1", "mesh": {"dp_shard": 4}},
    "gradients in parts": {"framework": "zero2", "mesh": {"dp_shard": 4}},
    "parameters in parts": {"framework": "zero3", "mesh": {"dp_shard": 4}},
    "gathered buckets": {"framework": "megatron_fsdp", "mesh": {"dp_shard": 4, "ep": 2}},
}  # fmt: skip


def small_program(change: dict[str, Any]) -> Program:
    training = {"seq_len": 128, **change.get("training", {})}
    asked = {"name": "small", "model": "nemotron-3-tiny", "topology": "dgx-h100"} | change | {"training": training}
    job, framework = prepare(parse_scenario(parse_document(json.dumps(asked), "small")))
    return program_of(place(job.graph, job.mesh, framework, 0))


def program_of(plan: Plan) -> Program:
    return lower(plan, Workload(1, 128, 1 << 16), actions(plan.framework.schedule, 0, 1), hooks_of(plan.framework))


def test_every_framework_is_among_the_small_jobs() -> None:
    assert {job["framework"] for job in SMALL.values()} == set(known_frameworks())


def test_categories_are_those_that_programs_post() -> None:
    posted = set()
    for change in SMALL.values():
        program = small_program(change)
        names = list(program.tables.slots)
        rows = program.columns[program.columns[:, OP] == Op.ALLOC]
        posted |= {names[slot][1] for slot in rows[:, SLOT].tolist()}
    assert posted == set(CATEGORIES)
    assert not posted & set(SERVED)


def test_pages_draw_the_categories_of_the_glossary() -> None:
    assert set(DRAWN) == set(CATEGORIES) | {*OUTSIDE, *SERVED}


def test_components_are_those_of_the_models() -> None:
    fields = [model_config(preset, None, "") for preset in known_presets()]
    fields.append(model_config("deepseek-v3", {"mtp_num_layers": 1}, ""))
    found: set[str] = set()
    for one, code in itertools.product(fields, IMPLEMENTATIONS):
        # not every family is described for every implementation, or there upstream
        with contextlib.suppress(NotYet, InputError, IllegalLayout):
            found |= set(small.components(build(one, code)))
    assert found | {"adapters", "expert_adapters"} == set(COMPONENTS)


# ---- the map --------------------------------------------------------------------------------------------------------
def named(page: str) -> set[str]:
    """Paths that a page names in backquotes, from the root of the repository."""
    top = "|".join(sorted(p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))))
    return set(re.findall(rf"`((?:{top})/[\w./-]*)`", page))


@pytest.mark.parametrize("page", [*(page.relative_to(ROOT).as_posix() for page in PAGES), *TOP])
def test_what_a_page_names_exists(page: str) -> None:
    assert [path for path in sorted(named(text(page))) if not (ROOT / path).exists()] == []


def test_the_architecture_names_every_package_in_its_order() -> None:
    assert tuple(re.findall(r"^\*\*`(\w+)`", text("docs/architecture.md"), re.MULTILINE)) == PACKAGES


def test_the_architecture_is_one_page() -> None:
    assert len(text("docs/architecture.md").splitlines()) <= 150


def test_the_index_of_decisions_links_every_one() -> None:
    files = sorted(path.name for path in (DOCS / "decisions").glob("*.md") if path.name != "README.md")
    assert sorted(re.findall(r"\]\(([\w-]+\.md)\)", text("docs/decisions/README.md"))) == files


@pytest.mark.parametrize("page", sorted((DOCS / "decisions").glob("*-*.md")), ids=lambda page: page.stem)
def test_a_decision_says_context_decision_and_consequence(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## Context", "## Decision", "## Consequence"]
    assert 10 <= len(lines) <= 30


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in TOP)], ids=lambda page: page.name)
def test_links_between_pages_hold(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in TOP)], ids=lambda page: page.name)
def test_no_page_knows_a_machine(page: Path) -> None:
    absolute = re.findall(r"(?<![\w.:/<])/(?:[a-z]+/)+[\w.-]+|[A-Z]:\\\w+|~/\w+", page.read_text(encoding="utf-8"))
    assert absolute == []


# ---- examples -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", range(len(blocks("docs/scenario.md", "yaml"))))
def test_examples_of_scenarios_are_legal(number: int, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(blocks("docs/scenario.md", "yaml")[number], encoding="utf-8")
    scenarios = load(file)
    assert scenarios
    assert {check(scenario).status for scenario in scenarios} == {"ok"}
