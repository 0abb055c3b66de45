"""Arguments in a script's text are changed where they stand; what is not simple is refused at its line."""

from __future__ import annotations

import pytest

from simcore.errors import NotYet
from simcore.recipes.conversion.script_text import ScriptText

TEXT = """\
# --tp 9 stands in a comment
TP=2  # ranks
export WIDE=${WIDE:-64}
if [ -n "$X" ]; then
  DEEP=4
fi
ARGS=(
  --tp ${TP} --flag   # both
  --wide $WIDE
  --deep $DEEP
  --names one two
  --last "${LAST:-7}"
)
run \\
  --here 1 \\
  --rows $(( ROWS * 2 )) --size ${ROWS} \\
  --end 3
"""


def script() -> ScriptText:
    return ScriptText(TEXT, "run.sh")


def test_arguments_are_found_outside_comments() -> None:
    assert script().names() == ("--tp", "--flag", "--wide", "--deep", "--names", "--last", "--here", "--rows", "--size",
                                "--end")
    assert (script().value("--tp"), script().value("--none")) == ("${TP}", None)


@pytest.mark.parametrize(("name", "value", "old", "new"), [
    ("--here", 2, "  --here 1 \\", "  --here 2 \\"), ("--tp", 4, "TP=2  # ranks", "TP=4  # ranks"),
    ("--wide", 96, "${WIDE:-64}", "${WIDE:-96}"), ("--last", 8, '"${LAST:-7}"', '"${LAST:-8}"'),
    ("--names", ["three"], "--names one two", "--names three"), ("--flag", True, "", "")])
def test_a_value_is_set_where_it_stands_or_where_its_variable_is(name: str, value: object, old: str, new: str) -> None:
    assert script().with_value(name, value).text == (TEXT.replace(old, new) if old else TEXT)


@pytest.mark.parametrize(("name", "told"), [
    ("--deep", "run.sh:5: not yet: --into: DEEP: a condition, or several lines, set this variable"),
    ("--size", "run.sh:16: not yet: --into: ROWS: 2 places have this variable's value, one of them --size"),
    ("--rows", "run.sh:16: not yet: --into: --rows: its value is put together of variables")])
def test_what_more_than_one_argument_decides_is_refused_at_its_line(name: str, told: str) -> None:
    with pytest.raises(NotYet) as found:
        script().with_value(name, 8)
    assert str(found.value) == told


def test_arguments_are_added_and_taken_away_with_their_lines() -> None:
    assert script().with_argument("--more", 5).text == TEXT.replace("  --end", "  --more 5 \\\n  --end")
    assert script().without("--end", values="one").text == TEXT.replace(" \\\n  --end 3\n", "\n")
    assert script().without("--flag", values="none").text == TEXT.replace(" --flag", "")
    assert script().without("--names", values="many").text == TEXT.replace("  --names one two\n", "")
    assert script().ahead_of("--here", "--first 2").text == TEXT.replace("--here", "--first 2 --here")
    with pytest.raises(NotYet, match="no argument has a line of its own"):
        ScriptText("run --tp 2\n", "run.sh").with_argument("--more", 5)
