"""Shapes of products in one number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simcore.recording.kernel_shape import MODULE_BITS, module_of, shape_of, shapes_in, unpacked
from simcore.recording.rows import Module

sides = st.integers(1, 1 << 23)


@given(m=sides, n=sides, groups=st.integers(1, 2047), sums_rows=st.booleans(), module=st.sampled_from(list(Module)))
def test_what_is_packed_beside_a_module_comes_back(m: int, n: int, groups: int, module: Module, *,
                                                   sums_rows: bool) -> None:
    column = np.array([module | shape_of(m, n, groups, sums_rows=sums_rows) << MODULE_BITS])
    assert module_of(column) == module
    rows, columns, count, by_rows = (int(one[0]) for one in unpacked(shapes_in(column)))
    assert (rows, columns, count, by_rows) == (m if sums_rows else -(-m // groups), n, groups, sums_rows)


def test_every_module_has_room_below_a_shape() -> None:
    assert max(Module) < 1 << MODULE_BITS


def test_what_is_nothing_or_of_too_many_groups_has_no_shape() -> None:
    assert shape_of(0, 8) == shape_of(8, 0) == shape_of(10**6, 8, 1 << 11) == 0
    assert shape_of(10**6, 8, (1 << 11) - 1) > 0


def test_sides_are_cut_where_a_number_ends() -> None:
    rows, columns, _, _ = unpacked(np.array([shape_of(1 << 40, 7)]))
    assert (int(rows[0]), int(columns[0])) == ((1 << 24) - 1, 7)
