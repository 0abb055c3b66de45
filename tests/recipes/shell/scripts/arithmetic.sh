A=3; B=4
WORLD=$((A*B))
let C=A+B
((D = A * 2))
(( D += 1 ))
((A++))
E=$(( (A + B) * 2 - 1 ))
F=$((A**2))
G=$(expr $A \* $B)
H=$[A+1]
I=$(( A > B ? 1 : 2 ))
J=$((A<<2))
K=$((0x10 + 1))
L=$((A == 4 && B == 4))
torchrun t.py $WORLD $C $D $A $E $F $G $H $I $J $K $L
