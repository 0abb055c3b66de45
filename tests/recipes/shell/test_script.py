"""Shell scripts are read and never run: values, arrays, conditions, and what more than the script decides."""

from __future__ import annotations

import time

import pytest

from simcore.errors import InputError
from simcore.recipes.shell.script import Started, read_script


def started(text: str) -> list[Started]:
    return list(read_script(text, "run.sh").commands)


def words(text: str) -> list[str]:
    """Words of the last command."""
    return [word.text for word in started(text)[-1].words]


@pytest.mark.parametrize(("text", "expected"), [
    ("A=3\nrun --n $A ${A} \"$A\" '$A'", ["run", "--n", "3", "3", "3", "$A"]),
    ("run ${B:-7} ${B:-\"8 9\"} ${B-x}${B:+y}", ["run", "7", "8 9", "x"]),
    ("A=5; B=$((A*2 + 7/2))\nrun $B $((-7/2)) $((B % 5))", ["run", "13", "-3", "3"]),
    ("ARGS=(--a 1 # one\n  --b \"two words\"\n)\nARGS+=(--c)\nrun \"${ARGS[@]}\"",
     ["run", "--a", "1", "--b", "two words", "--c"]),
    ("ARGS=(--b \"two words\")\nrun ${ARGS[@]} ${#ARGS[@]} ${ARGS[0]}", ["run", "--b", "two", "words", "2", "--b"]),
    ("OPTS=\" --a 1 \\\n  --b 2 \"\nrun \\\n $OPTS", ["run", "--a", "1", "--b", "2"]),
    ("export A=4 B=5\ndeclare -a C=(6)\nrun $A$B ${C[@]} > log 2>&1", ["run", "45", "6"]),
    ("A=x\nif [ \"$A\" = y ]; then N=1; elif [[ $A == x && -n $A ]]; then N=2; else N=3; fi\nrun $N", ["run", "2"]),
    ("N=1\n[ -z \"$WANDB\" ] && N=2\n[[ -n \"$WANDB\" ]] && N=3\nrun $N", ["run", "2"]),
    ("case big in small|tiny) N=1 ;; b*) N=2 ;; *) N=3 ;; esac\nrun $N", ["run", "2"]),
    ("while [[ $# -gt 0 ]]; do N=9; shift; done\nN=${N:-1}\nrun $N", ["run", "1"]),
    ("go() { N=4; run $N; }\ngo", ["run", "4"]),
    ("C=\"run --a 1; run --b 2\"\nsrun -N 2 bash -c \"$C\"", ["run", "--b", "2"]),
    ("bash <<END\nrun --a 1\nEND", ["run", "--a", "1"]),
    ("if [ ! -f $X ]; then echo no; exit 1; fi\nrun ok", ["run", "ok"]),
    ("go() { run $@ \"$1\" $# ${2:-none} $3; }\ngo --a \"b c\"", ["run", "--a", "b", "c", "--a", "2", "b", "c"]),
    ("go() { run \"$@\"; }\ngo --a \"b c\"", ["run", "--a", "b c"]),
    ("go() { run \"$*\" \"${@:2}\"; }\ngo a b c", ["run", "a b c", "b", "c"]),
    ("go() { shift; inner x; run $1 $@; }\ninner() { shift; shift 2; }\ngo a b c",
     ["run", "b", "b", "c"]),
    ("set -- --a 1\nrun \"$@\"", ["run", "--a", "1"]),
    ("bash -c 'run $1 $@' name x y", ["run", "x", "x", "y"]),
    ("E=()\nrun --a 1 \"$@\" \"${@}\" $@ \"${E[@]}\" ${E[@]} \"${E[*]}\" \"$*\" last",
     ["run", "--a", "1", "", "", "last"]),
])  # fmt: skip
def test_words_are_as_a_shell_has_them(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(("text", "reason"), [
    ("run --n $N", "$N, which the script does not set (--set env.N=VALUE gives it)"),
    ("run --n $1", "argument 1 of the script"),
    ("run --n $(nproc)", "the output of a command"),
    ("run --n `nproc`", "the output of a command"),
    ("N=1\nfor X in $(ls); do N=$X; done\nrun --n $N",
     "the loop at line 2 (lines 1 and 2 set $N; --set env.N=VALUE answers)"),
    ("N=1\nif grep -q x y; then N=2; fi\nrun --n $N",
     "the condition at line 2, which the script alone does not decide (lines 1 and 2 set $N; --set env.N=VALUE "
     "answers)"),
    ("run --n $((N + 1))", "$((N + 1)), which the script alone does not decide"),
    ("N=a.b; run --n ${N//[a-c]/x}", "${N//[a-c]/x}, an operation on texts"),
])
def test_a_value_that_more_decides_says_what(text: str, reason: str) -> None:
    word = started(text)[-1].words[2]
    assert word.unknown == reason


@pytest.mark.parametrize(("text", "may_hold"), [
    ("run $(cat args)", True),
    ("E=$(cat args); run $E", True),
    ("source cluster.sh; run $E", True),
    (". cluster.sh; run ${E}", True),
    ("E='--a 1'\nif grep -q x y; then E=; fi\nrun $E", True),
    ("source venv/bin/activate; run $E", False),
    ("run $E", False),
    ("run $1", False),
])
def test_a_whole_word_that_is_not_known_may_hold_arguments(text: str, *, may_hold: bool) -> None:
    assert started(text)[-1].words[1].may_hold is may_hold


def test_a_shift_that_more_decides_is_refused_at_its_line() -> None:
    with pytest.raises(InputError, match=r"run.sh:2: shift lies in the condition at line 2"):
        started("go() {\n if grep -q x y; then shift; fi\n run $@\n}\ngo --a 1")


def test_a_file_beside_the_script_is_read_where_it_is_sourced() -> None:
    text = "TP=1\n. ./conf.sh\nrun --tp ${TP:-3} ${ARGS[@]} $LATE"
    open_words = read_script(text, "run.sh").commands[-1].words
    assert all("the file that is sourced at line 2" in word.unknown for word in open_words[2:])
    beside = {"conf.sh": "TP=8\nARGS=(--a\n  --b)\nif grep -q x y; then\n LATE=1; fi"}
    found = read_script(text, "run.sh", beside=beside).commands[-1].words
    assert [(word.text, word.line) for word in found[:5]] == [("run", 3), ("--tp", 3), ("8", 2), ("--a", 2), ("--b", 2)]
    assert found[5].unknown.startswith("the condition at line 4 of conf.sh, which the script alone does not decide")
    with pytest.raises(InputError, match="more than 16 files that source each other"):
        read_script(". a.sh", "run.sh", beside={"a.sh": ". a.sh"})


def test_what_the_user_says_of_a_variable_answers_for_what_the_script_leaves_open() -> None:
    for text in ("if grep -q x y; then N=1; else N=2; fi", "N=$(nproc)", ". conf.sh", "N=1; . conf.sh", "read N"):
        [*_, last] = read_script(f"{text}\nrun $N", "run.sh", {"N": "4"}).commands
        assert [(word.text, word.unknown) for word in last.words] == [("run", ""), ("4", "")]
    assert [word.text for word in read_script("N=1\nrun $N", "run.sh", {"N": "4"}).commands[-1].words] == ["run", "1"]


@pytest.mark.parametrize(("text", "told"), [
    ("case x in x) A=1 ;;& esac", "goes on with the next arm"),
    ("if grep -q x y; then f() { A=1; }; else f() { A=2; }; fi\nf", "f: a function that more than the script decides")])
def test_what_is_not_followed_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        started(text)


def test_lines_are_those_of_the_arguments() -> None:
    found = started("X=(\n  --a 1\n  --b 2\n)\nO=\"--c 3 \\\n  --d 4\"\nrun ${X[@]} $O")[-1]
    lines = {word.text: word.line for word in found.words}
    assert (lines["--a"], lines["--b"], lines["--c"], lines["--d"], lines["run"]) == (2, 3, 5, 6, 7)


def test_commands_in_loops_and_open_conditions_say_so() -> None:
    assert [one.within for one in started("for i in 1 2; do run $i; done")] == ["the loop at line 1"] * 2
    assert started("if [ -f x ]; then run 1; fi")[0].within.startswith("the condition at line 1")


@pytest.mark.parametrize(("loop", "is_reached"), [
    ("while true; do sleep 1; done", False), ("until false; do if a; then echo; fi; done", False),
    ("for ((;;)); do sleep 1; done", False), ("while :; do [ -f x ] && break; done", True),
    ("while true; do sleep 9; done &", True), ("{ while true; do sleep 9; done; } &", True),
    ("(while true; do sleep 9; done)", False), ("while true; do ask; done | tee log", False),
    ("stop() { break; }\nwhile true; do stop; done", True), ("while true; do source more.sh; done", True)])
def test_what_is_behind_a_loop_that_never_ends_is_not_reached(loop: str, *, is_reached: bool) -> None:
    script = read_script(f"torchrun a.py\n{loop}\ntorchrun b.py", "run.sh")
    first, *_, last = script.commands
    assert (first.within, "never ends" in last.within) == ("", not is_reached)


def test_sbatch_lines_are_read() -> None:
    script = read_script("#!/bin/bash\n#SBATCH --nodes=4 # many\n#SBATCH -n 8\nrun", "run.sh")
    assert [(word.text, word.line) for word in script.sbatch] == [("--nodes=4", 2), ("-n", 3), ("8", 3)]


@pytest.mark.parametrize("text", [
    "run \"never closed", "run ${A", "A=(1 2", "if true; then run", "case x in a) run", "fi", "run )", "a\0b",
    "$(" * 200, "((" * 3000, "{ " * 500, "if true; then " * 400, "\"$(" * 300, "A=(" * 100, "${A:-" * 200,
])
def test_what_is_no_script_is_refused_by_name(text: str) -> None:
    begin = time.process_time()
    with pytest.raises(InputError):
        read_script(text, "run.sh")
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("text", [
    "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40 + "run $A",
    "A=(x x x x)\n" + "A=(${A[@]} ${A[@]})\n" * 40 + "run ${A[@]}",
    "f() { f; f; }\nf\n" + "true\n" * 10,
    "A=1\n" * 30_000,
    "A=1\n" + "A+=$A\n" * 64,
    "for a in {1..60}; do for b in {1..60}; do for c in {1..60}; do run $a; done; done; done\n" + "true\n" * 4000,
])
def test_bombs_stop_within_a_second(text: str) -> None:
    begin = time.process_time()
    with pytest.raises(InputError):
        read_script(text, "run.sh")
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("text", [
    "run " + "{" * 50_000, "run " + "{a," * 20_000, "run " + "{a,b}" * 500, "[ " + "! " * 5_000 + "a ] && run",
    "[[ " + "( " * 5_000 + "a ]] && run", "A=" + "ab" * 2_000 + "\n" + "run ${A%%*b*a*}\n" * 60,
    "run $((" + "-" * 5_000 + "1))", "while true; do run; done", "run ${A" + "[" * 5_000 + "}"])
def test_what_is_large_is_passed_within_a_second(text: str) -> None:
    begin = time.process_time()
    read_script(text, "run.sh")
    assert time.process_time() - begin < 2


def test_nothing_is_run(tmp_path: object) -> None:
    text = f"touch {tmp_path}/made\n$(touch {tmp_path}/made)\n`touch {tmp_path}/made`\neval touch {tmp_path}/made\n"
    read_script(text, "run.sh")
    assert not list(__import__("pathlib").Path(str(tmp_path)).iterdir())


def test_a_value_that_the_user_says_has_the_line_where_it_is_used() -> None:
    script = read_script("true\nexport NNODES=$SLURM_NNODES\nrun $NNODES", "run.sh", {"SLURM_NNODES": "2"})
    assert [(word.text, word.line) for word in script.variables["NNODES"]] == [("2", 2)]
