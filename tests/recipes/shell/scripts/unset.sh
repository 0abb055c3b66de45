A=1; B=2
unset A
unset -v B
f() { torchrun no.py; }
unset -f f
torchrun t.py x${A:-}y ${B:-5}
declare -i N=3
N+=4
readonly R=2
torchrun t.py $N $R
