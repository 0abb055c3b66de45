A=1
echo x | grep -q y && A=2
echo x | grep -q x && B=2 || B=3
export C=1 && torchrun t.py a | cat
D=1 && E=2 | cat
torchrun t.py $C $D ${E:-n}
echo hi | torchrun t.py b && F=1
