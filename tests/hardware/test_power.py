"""Power limits: how fast matrix units are below the power of their GPU, by runs that the relation was not made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import InputError
from simcore.hardware.efficiency import load_efficiency
from simcore.hardware.power import LEAST, MEASURED, rate_share
from simcore.hardware.topology import load_topology
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import simulate

V100 = ((0.6565, 0.847), (0.7554, 0.9125), (0.8397, 0.9497), (0.9327, 0.9807))
"""(power, speed) of ResNet-50 under limits of 150, 175, 200 and 225 W, of those under 250 W; batches of 256.

ml-energy/zeus `zeus_nsdi23/trace/summary_power_v100.csv`: 220.25 W and 3515.0 s an epoch; 144.6 W and 4148.7 s."""
TITAN = ROOT / "tests" / "truth" / "measured" / "torchtitan.jsonl"


@pytest.mark.parametrize(("power", "speed"), MEASURED[1:])
def test_measured_points_are_themselves(power: float, speed: float) -> None:
    assert rate_share(power) == pytest.approx(speed)


def test_it_is_straight_between_them_and_never_falls() -> None:
    assert rate_share((0.735 + 0.781) / 2) == pytest.approx((0.912 + 0.932) / 2)
    shares = [rate_share(LEAST + step * (1 - LEAST) / 50) for step in range(51)]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize(("power", "speed"), V100)
def test_a_v100_slows_down_as_the_a100_does(power: float, speed: float) -> None:
    assert rate_share(power) == pytest.approx(speed, abs=0.025)


@pytest.mark.parametrize(("limit", "told"), [
    ("450 W", "450 W is 0.643 of 700 W"), ("701 W", "701 W is 1.001 of 700 W"), ("5 GB", "expected a quantity in W")])
def test_limits_outside_of_what_was_measured_are_refused(limit: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_topology("dgx-h100").limited(limit)


def test_a_gpu_without_its_power_has_no_limit() -> None:
    device = load_topology("dgx-h100").device.model_copy(update={"power": None})
    with pytest.raises(InputError, match="needs power beside it"):
        load_topology("dgx-h100").model_copy(update={"device": device}).limited("500 W")


def test_the_whole_power_is_no_limit() -> None:
    whole, limited = (simulate(_asked(limit)) for limit in (None, "700 W"))
    assert whole.time is not None
    assert limited.time is not None
    assert limited.time.step_s == whole.time.step_s
    assert [a.value for a in limited.assumptions if a.what == "topology.power_limit"] == [
        "700 W of 700 W: matrix units at 100.0% of their rate"]


def test_a_limit_slows_products_and_no_pass_over_memory() -> None:
    whole, limited = (simulate(_asked(limit)).time for limit in (None, "500 W"))
    assert whole is not None
    assert limited is not None
    spent = [{(k.kernel, k.dtype): (k.forward_s, k.flops) for k in time.kernels} for time in (whole, limited)]
    products = {key for key in spent[0] if key[0] in ("gemm", "attention", "attention_flash2")}
    assert products
    for key, (before, flops) in spent[0].items():
        assert (spent[1][key][0] > before) == (key in products and flops > 0), key


def _asked(limit: str | None) -> Any:
    asked = small.scenario("fsdp2", {"dp_shard": 2}, model="llama-3.1-8b")
    tree = {**json.loads(asked.model_dump_json(exclude_unset=True)), "topology": {"file": "dgx-h100"}}
    tree["training"]["seq_len"] = 4096
    if limit:
        tree["topology"]["power_limit"] = limit
    return parse_scenario(parse_document(json.dumps(tree), "x.json"))


def test_torchtitan_s_500_w_from_the_part_of_700_w(tmp_path: Path) -> None:
    """Its machine by the shares of the 80 GB part, which no run of its was needed for: the limit is worth 6 to 7 %."""
    row = next(row for row in map(json.loads, TITAN.read_text(encoding="utf-8").splitlines())
               if row["id"] == "torchtitan-llama31-8b-128g-compile")
    text = (ROOT / "topologies" / "h100-96gb-hbm2e.yaml").read_text(encoding="utf-8")
    text = text.replace("efficiency: h100-hbm2e", "efficiency: h100")
    errors: list[float] = []
    for limit in ("", "  power_limit: 500 W\n"):
        file = tmp_path / f"{len(errors)}.yaml"
        file.write_text("".join(f"{limit}  power: 700 W\n" if line.startswith("  power:") else line
                                for line in text.splitlines(keepends=True)), encoding="utf-8")
        asked = parse_scenario(parse_document(json.dumps({**row["scenario"], "name": "x"}), "x.json"))
        time = simulate(asked.model_copy(update={"topology": str(file)})).time
        assert time is not None
        errors.append(time.step_s / row["step_s"] - 1)
    assert errors[0] < -0.1
    assert abs(errors[1]) < 0.065


def test_shares_of_the_part_under_a_limit_are_those_of_the_part_without_it() -> None:
    """flash-attention 2's, and of what is told by it, on the GPU of 500 W; products and others have their own."""
    limited, whole = load_efficiency("h100-hbm2e").kernels, load_efficiency("h100").kernels
    for name in ("attention_flash2", "attention_triton", "attention_efficient"):
        share = getattr(limited, name).compute.si / getattr(whole, name).compute.si
        assert share == pytest.approx(rate_share(500 / 700), abs=0.007), name  # three digits each
