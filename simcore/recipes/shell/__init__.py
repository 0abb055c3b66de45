"""Reader of shell scripts that start trainings: values of variables and arrays, and the commands with their words.

Input: the text of a script, and of files that it sources. Output: a `Script`. Start: `script.read_script`. Nothing is
executed, no environment is read, no file is opened. `tests/recipes/shell/test_like_bash.py` holds it against bash.

`tokens`, `syntax`: words with their lines, and statements of them. `pieces`, `values`: parts of values, and variables.
`expansion` (with `braces`, `operations`, `arithmetic`, `substitution`): words that a word stands for. `conditions`:
`[ ]` and `[[ ]]`. `changes`: commands that set variables. `inner`: scripts in a script. `commands`, `run`: take a
script's statements in order. `paths`: values behind statements of which more than the script decides whether they run.
`endless`: loops that nothing leaves.

A script is read as if it were started without arguments, in an environment that sets no variable; its functions have
the arguments of their calls. A value that depends on more than the script says is carried along with the reason, and
only who needs it complains.
"""
