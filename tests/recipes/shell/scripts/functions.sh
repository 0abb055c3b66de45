launch() {
  local name=$1; shift
  local -a extra=("$@")
  local n=${#extra[@]}
  torchrun --name "$name" t.py "${extra[@]}" --count $n
}
common=(--lr 1e-4 --bs "$((2*4))")
launch first "${common[@]}" --x
launch second
add() { ARGS+=("--$1" "${2:-on}"); }
add flag
add tp 4
torchrun t.py "${ARGS[@]}"
get() { echo 8; }
N=$(get)
outer() { inner() { echo x; }; TP=3; }
outer
torchrun t.py $TP
f() { for a in "$@"; do L+="<$a>"; done; torchrun t.py "$L" $#; }
f "a b" c
