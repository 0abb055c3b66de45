TP_small=1
TP_big=8
SIZE=big
VAR=TP_$SIZE
torchrun t.py ${!VAR}
eval "X=\$TP_$SIZE"
torchrun t.py $X
