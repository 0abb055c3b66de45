A=4
N=$(echo $A)
T=$(echo "$A * 2" | bc)
B=$(basename /x/y/run.sh .sh)
D=$(dirname /x/y/run.sh)
W=$(echo 0,1,2,3 | tr ',' '\n' | wc -l)
P=$(printf "%s" "$A")
torchrun t.py $N $T $B $D $W $P
