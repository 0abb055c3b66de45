declare -A LAYERS=([7b]=32 [13b]=40)
declare -A HIDDEN
HIDDEN[7b]=4096
HIDDEN[13b]=5120
SIZE=13b
torchrun t.py ${LAYERS[$SIZE]} ${HIDDEN[$SIZE]} ${LAYERS[7b]}
LIST=(8 16 32)
IDX=1
torchrun t.py ${LIST[$IDX]} ${LIST[IDX+1]} ${LIST[0]} $LIST
