cd / && torchrun t.py --a && torchrun u.py --b
true && X=1
false && X=2
true || X=3
false || Y=4
! false && Z=5
if true && ! false; then V=6; fi
torchrun t.py $X $Y $Z $V
