N=2
export M=3
bash -c "torchrun t.py $N \$M \${N:-unset}"
sh -c 'torchrun t.py "$1" "$@"' zero one "two three"
srun -N $N bash -ec "cd /; torchrun t.py --n $N && echo done"
bash -x -e -c 'torchrun t.py --flags'
cat <<'E' | cat
torchrun t.py --not-run
E
CMD=(torchrun t.py --arr "a b")
"${CMD[@]}" --more
${CMD[@]} --more
eval "${CMD[@]}" --evald
