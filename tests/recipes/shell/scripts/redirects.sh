exec > >(true) 2>&1
torchrun t.py --a 1 > /dev/null 2>&1 < /dev/null &
wait
torchrun t.py --b 2 &>/dev/null
torchrun t.py --c 3 2>/dev/null | cat
cat /dev/null | torchrun t.py --d
{ torchrun t.py --e; } 2>/dev/null
torchrun t.py --f=2 3>&1
