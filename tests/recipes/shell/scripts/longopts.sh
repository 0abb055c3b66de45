TP=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP="$2"; shift 2 ;;
    --tp=*) TP="${1#*=}"; shift ;;
    *) break ;;
  esac
done
torchrun t.py --tp $TP
