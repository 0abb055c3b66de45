"""What every test starts from, in one process or in several."""

from __future__ import annotations

import os

import pytest

pytest.register_assert_rewrite("eventlog", "claims")
os.environ.pop("COLUMNS", None)  # pytest-xdist tells its workers a width; tables are tested as a pipe gets them
