"""Reader of shell scripts that start trainings: values of variables and arrays, and the commands with their words.

Input: the text of a script. Output: a `Script`. Start: `script.read_script`. Nothing is executed, no environment is
read, no file is opened.

`tokens`: words, operators, arrays and here-documents with their lines. `syntax`: lists, conditions, cases, loops and
functions. `expansion`: what a word stands for: quotes, `$NAME`, `${NAME:-default}`, `$(( ))`. `arithmetic`: whole
numbers in `$(( ))`. `conditions`: `[ ]` and `[[ ]]`. `script`: takes a script's statements in order.

A script is read as if it were started without arguments, in an environment that sets no variable; its functions have
the arguments of their calls. A value that depends on more than the script says (command substitution, a loop, an
argument) is carried along with the reason, and only who needs it complains.
"""
