"""Page of the options of each framework.

    python -m simcore.docgen.options > docs/options.md
"""

from __future__ import annotations

import sys
from typing import Final

from simcore.docgen.glossary import table
from simcore.docgen.listing import Record, options
from simcore.frameworks.registry import framework_adapter, known_frameworks

__all__ = ["options_page"]

_HEAD: Final = """# Options

Made by `python -m simcore.docgen.options`. Keys of `framework_options` in a scenario, in the frameworks' own words;
`rankscope options fsdp2` prints those of one framework. A default is told where the framework's table takes one for
small models: without it an option is off, or its effect depends on the job. Layers are named where not all of the
framework's take the option.
"""


def options_page() -> str:
    """Markdown text of `docs/options.md`: a table for each framework."""
    return _HEAD + "".join(f"\n## {name}\n\n{_section(name)}\n" for name in known_frameworks())


def _section(framework: str) -> str:
    every = list(framework_adapter(framework).implementations)
    return table(("option", "values", "default", "layers", "what it says"),
                 (_row(record, every) for record in options(framework)))


def _row(record: Record, every: list[str]) -> tuple[str, ...]:
    layers = "" if record["layers"] == every else ", ".join(f"`{name}`" for name in record["layers"])
    values = " ".join(f"`{value}`" for value in record["values"])
    return f"`{record['name']}`", values, record["default"] or "", layers, record["says"]


if __name__ == "__main__":
    sys.stdout.write(options_page())
