ARGS=""
for f in a b c; do ARGS="$ARGS --data $f"; done
for i in {0..2}; do IDS+="$i,"; done
for i in $(seq 1 3); do S+=$i; done
for ((i=0; i<3; i++)); do C+="x$i"; done
LAST=$i
i=0
while [ $i -lt 3 ]; do W+=(w$i); i=$((i+1)); done
torchrun t.py $ARGS $IDS $S $C $LAST "${W[@]}" $f
