GPUS=8; NODES=4
TOTAL=`expr $GPUS \* $NODES`
GBS=$((GPUS*NODES*4)); MBS=$(( GBS / (GPUS*NODES) / 2 ))
let "ACC = GBS / (MBS * TOTAL)"
STEPS=$(( 1000000 / GBS ))
HEX=$((0xff)); OCT=8
(( ACC > 1 )) && A=yes
i=5; ((i--)); j=$((i++ + ++i)); k=$((-7 / 2)) l=$((-7 % 3)) m=$(( 1 ? 2 : 3 )) n=$((!0)) o=$(( (1<<4) | 3 ))
p=0; ((p += 3)); q=$((ACC)); r=$((10 ** 3))
torchrun t.py $TOTAL $GBS $MBS $ACC $STEPS $HEX $((OCT)) $A $i $j $k $l $m $n $o $p $q $r
