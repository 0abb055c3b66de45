ARGS=(--a 1)
ARGS+=(--b "two words")
ARGS+=(
  --c   # comment
  $( : )
  --d=4
)
ARGS[1]=7
OPT="--e 5"
OPT+=" --f 6"
torchrun t.py "${ARGS[@]}" $OPT ${#ARGS[@]} "${ARGS[@]:2}" "${ARGS[@]:0:2}" "${ARGS[-1]}"
CMD="torchrun t.py ${ARGS[@]} --end"
$CMD
COPY="${ARGS[@]}"
torchrun t.py "$COPY" ${#COPY} "${COPY[@]}"
bash -c "$CMD; torchrun t.py ${OPT}"
