NODES=1
TP=1
while getopts "n:t:h" opt; do
  case $opt in
    n) NODES=$OPTARG ;;
    t) TP=$OPTARG ;;
    h) echo usage; exit 0 ;;
    *) exit 1 ;;
  esac
done
shift $((OPTIND-1))
torchrun --nnodes $NODES t.py --tp $TP "$@"
