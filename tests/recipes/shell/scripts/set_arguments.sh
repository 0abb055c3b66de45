set -euo pipefail
set -- --a 1 "b c"
torchrun t.py "$@"
shift
torchrun t.py "$#" "$1" "${@:2}" "${@:1:1}"
set -- "$@" --more
torchrun t.py "$@"
