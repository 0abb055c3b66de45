TP=1; KEEP=5
source "$(dirname "$0")/conf.inc"
. ./conf.inc
torchrun t.py --tp ${TP:-9} --pp $PP --keep $KEEP "${LIST[@]}" $(echo $FROM)
tell x "y z"
