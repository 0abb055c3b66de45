run() {
  local tp=$1 pp=$2
  shift 2
  inner() { torchrun --nproc_per_node 8 train.py --tp "$tp" --pp $pp "$@"; }
  inner --more "a b" "$@"
}
tp=99
run 2 4 --x "y z" --flag
torchrun after.py $tp
