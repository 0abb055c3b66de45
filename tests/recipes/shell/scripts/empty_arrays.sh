N=3
torchrun t.py --n $N --flag ${X:+--x} ${Z[@]+"${Z[@]}"}
