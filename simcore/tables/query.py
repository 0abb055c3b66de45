"""SQL over the rows of a folder of results, answered by DuckDB (the extra `query`).

[Note: what a query may do]
It reads two views: `results`, a row a result, and `columns`, which says what they are. The database is in memory, the
rows are handed over by pyarrow, and DuckDB itself may open no file, no address, no extension and no variable of Python
(`enable_external_access` and the others in `_CLOSED`, locked before the query is seen). One statement that selects is
taken, anything else is refused.

[Note: keys in SQL]
A column of a key, `training.seq_len`, is a field of the struct `training`, so it is written as in a scenario, without
quotes. Names that two words have in common with a fixed column keep theirs whole: `"model.overrides"`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simcore.errors import InputError, Problem
from simcore.tables.data_set import data_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["Answer", "ask"]

_CLOSED: Final[Mapping[str, str]] = {
    "enable_external_access": "false", "autoload_known_extensions": "false", "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false", "temp_directory": "", "threads": "2"}
"""Settings that shut out files, the network, extensions and variables of the process; results need two threads."""
_SHORT: Final[Mapping[str, str]] = {
    "peak_gib": "peak_bytes / 1073741824.0", "headroom_gib": "headroom_bytes / 1073741824.0",
    "seq_len": '"training.seq_len"', "micro_batch_size": '"training.micro_batch_size"',
    "global_batch_size": '"training.global_batch_size"', "recompute": '"training.recompute"'}
"""Short names in `results` for what is asked most: name, and its expression over columns."""
_AXES: Final = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
_MANY: Final = 20_000
"""Most characters of a query."""


@dataclass(frozen=True)
class Answer:
    """Answer of a query: `names` of its columns; `rows`, read as they are asked for, each a value a column."""

    names: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def ask(folder: Path, sql: str) -> Answer:
    """Answer of `sql` over the rows in a folder of `run -o` or `search -o`.

    InputError without DuckDB, for a folder without rows or with those of another version or other results, and for SQL
    that does not parse, names what is not there, or is more than one statement that selects.
    """
    _expect_duckdb()
    import duckdb

    files = data_of(folder)
    if len(sql) > _MANY:
        raise InputError(Problem("SQL", f"expected at most {_MANY:,} characters, got {len(sql):,}"))
    try:
        asked = _opened(files)
        (statement,) = _statements(asked, sql)
        found = asked.execute(statement)
        names = tuple(str(column[0]) for column in found.description or ())
        return Answer(names, _rows(found))
    except duckdb.Error as error:
        raise _refused(error) from None


def _expect_duckdb() -> None:
    missing = [name for name in ("duckdb", "pyarrow") if not _is_there(name)]
    if missing:
        message = f"needs {' and '.join(missing)}, which is not installed: pip install 'rankscope[query]'"
        raise InputError(Problem("rankscope query", message))


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # in sys.modules as None
        return False


def _opened(files: Sequence[Path]) -> duckdb.DuckDBPyConnection:
    """Database in memory with both views, closed to everything else."""
    import duckdb
    import pyarrow as pa
    from pyarrow import dataset

    try:
        rows = dataset.dataset([str(path) for path in files], format="parquet")
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(Problem(str(files[0].parent) if files else "data", f"cannot be read: {error}")) from None
    asked = duckdb.connect(":memory:", config=dict(_CLOSED))
    asked.register("data_", rows)
    asked.register("columns_", _columns(rows.schema))
    columns = ", ".join(_selected(rows.schema.names))
    asked.execute(f"create view results as select {columns} from data_")  # noqa: S608 - names are quoted
    asked.execute("create view columns as select * from columns_")
    asked.execute("set lock_configuration = true")
    return asked


def _columns(schema: pa.Schema) -> pa.Table:
    """Table of the columns: name, type, unit and description."""
    import pyarrow as pa

    about = [field.metadata or {} for field in schema]
    return pa.table({"name": schema.names, "type": [str(field.type) for field in schema],
                     "unit": [one.get(b"unit", b"").decode() for one in about],
                     "description": [one.get(b"description", b"").decode() for one in about]})


def _selected(names: Sequence[str]) -> Iterator[str]:
    """Expressions of the view `results`: plain columns, short names, then a struct for each block of keys."""
    plain = [name for name in names if "." not in name or name.partition(".")[0] in names]
    yield from map(_quoted, plain)
    yield from (f"{expression} as {name}" for name, expression in _SHORT.items()
                if name not in plain and _column_in(expression) in names)
    blocks: dict[str, Any] = {}
    for name in names:
        if name not in plain:
            inner = blocks
            *path, last = name.split(".")
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = name
    if "mesh" not in names and set(_AXES) <= set(names):
        blocks["mesh"] = {axis: axis for axis in _AXES}
    yield from (f"{_struct(inner)} as {_quoted(name)}" for name, inner in blocks.items())


def _column_in(expression: str) -> str:
    return expression.partition(" ")[0].strip('"')


def _struct(inner: Mapping[str, Any] | str) -> str:
    if isinstance(inner, str):
        return _quoted(inner)
    return "{" + ", ".join(f"{_quoted(name)}: {_struct(value)}" for name, value in inner.items()) + "}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _statements(asked: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    """The one statement of a text. InputError if there are others, or it does not select."""
    import duckdb

    found = asked.extract_statements(sql)
    if len(found) != 1:
        message = f"expected one statement, such as select * from results, got {len(found)}"  # noqa: S608 - no query
        raise InputError(Problem("SQL", message))
    kind = found[0].type
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise InputError(Problem("SQL", f"expected a statement that selects, got {str(kind).rpartition('.')[2]}"))
    return found


def _rows(found: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    import duckdb

    try:
        while some := found.fetchmany(1000):
            yield from some
    except duckdb.Error as error:
        raise _refused(error) from None


def _refused(error: Exception) -> InputError:
    """DuckDB's reason in one line, with its suggestion of a column where there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("LINE ", "^"))][:2]
    return InputError(Problem("SQL", "; ".join(kept) or "cannot be answered"))
