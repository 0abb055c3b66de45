{ A=1; B=2; } ; ( C=3; A=9 ); D=4 &
wait
E=$( : ) F=`echo 6`
A=1 && B=3 || B=4
true; [ 1 = 2 ] || G=7
false || { H=8; I=9; }
torchrun t.py $A $B ${C:-n} ${D:-n} "$E" $F $G $H $I
! true
if { true; }; then J=1; fi
torchrun t.py $J
