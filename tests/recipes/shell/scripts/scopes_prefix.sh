export A=1
A=2 B=3 torchrun t.py $A ${B:-none}
torchrun t.py $A ${B:-none}
env C=3 torchrun t.py ${C:-none}
f() { torchrun t.py ${D:-none}; }
D=5 f
torchrun t.py ${D:-none}
D=6; f
X=1 Y=$X
torchrun t.py $X $Y
unset A; torchrun t.py ${A:-gone}
