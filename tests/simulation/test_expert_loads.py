"""Rows drawn at random: they add up, they repeat, and no rank gets what it cannot get."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simcore.simulation.expert_loads import ExpertLoad, sample_received_rows

LOADS = ExpertLoad(seed=3, num_draws=400, concentration=1.0, num_experts=16, top_k=2, tokens=1000, ep=4, etp=1,
                   num_groups=2,
              num_microbatches=3)


@pytest.mark.parametrize("concentration", [None, 0.5, 1.0, 50.0])
def test_a_group_receives_what_it_sends(concentration: float | None) -> None:
    rows = sample_received_rows(replace(LOADS, concentration=concentration), 7)
    assert rows.shape == (3, 400, 2, 4)
    assert np.unique(rows.sum(axis=3)).tolist() == [4 * 2 * 1000]


def test_a_seed_and_a_layer_say_which_rows() -> None:
    rows = sample_received_rows(LOADS, 7)
    assert (rows == sample_received_rows(LOADS, 7)).all()
    assert (rows != sample_received_rows(LOADS, 8)).any()
    assert (rows != sample_received_rows(replace(LOADS, seed=4), 7)).any()


def test_alike_experts_scatter_as_a_multinomial() -> None:
    rows = sample_received_rows(replace(LOADS, concentration=None, num_draws=4000), 0)
    assert rows.mean() == pytest.approx(LOADS.balanced)
    assert rows.std() == pytest.approx(np.sqrt(8000 * 0.25 * 0.75), rel=0.02)


def test_dirichlet_shares_scatter_by_their_concentration() -> None:
    # A rank's share is Dirichlet too, with its experts' concentrations added up: variance a (A - a) / (A^2 (A + 1)).
    for concentration in (1.0, 10.0):
        rows = sample_received_rows(replace(LOADS, concentration=concentration, num_draws=4000, tokens=10**6, top_k=1),
                                    0)
        mine, whole = 4 * concentration, 16 * concentration
        expected = np.sqrt(mine * (whole - mine) / (whole**2 * (whole + 1)))
        assert (rows / 4e6).std() == pytest.approx(expected, rel=0.05)


def test_popularity_is_one_for_all_groups_and_microbatches() -> None:
    rows = sample_received_rows(replace(LOADS, tokens=10**6), 0) / 2e6
    assert np.abs(rows - rows[:1, :, :1]).max() < 0.02 < rows.std()


def test_no_expert_is_chosen_twice_by_a_token() -> None:
    rows = sample_received_rows(replace(LOADS, concentration=0.01, num_experts=8, ep=8), 0)
    assert rows.max() <= 8 * 1000
    assert rows.min() == LOADS.top_k
    crowded = rows[:, :, :, :].max(axis=3)
    assert np.median(crowded) > 0.9 * 8 * 1000  # popularity that is concentrated fills its experts to the brim


def test_where_every_expert_is_chosen_all_ranks_receive_alike() -> None:
    rows = sample_received_rows(replace(LOADS, num_experts=4, top_k=4, concentration=0.1, tokens=10**5), 0)
    assert rows.max() <= 4 * 10**5
    assert rows.std() < 0.01 * rows.mean()


def test_expert_tensor_ranks_share_rows() -> None:
    rows = sample_received_rows(replace(LOADS, etp=2, concentration=None), 0)
    assert rows.mean() == pytest.approx(LOADS.balanced, rel=1e-3)
