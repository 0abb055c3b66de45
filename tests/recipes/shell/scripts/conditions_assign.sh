A=1
[[ $A == 1 ]] && X=2
[[ $A == 2 ]] && X=3 || Y=4
[ "$A" -eq 1 ] && { Z=5; W=6; }
test "$A" = 1 || Z=9
[[ -z "${NOPE:-}" ]] && Q="--q 1"
[ -n "$NOPE" ] && Q="--q 2"
((A == 1)) && R=1
torchrun t.py $X $Y $Z $W $Q $R
