NAME="exp_$(echo tp)${TP:-1}"
JSON='{"a": 1, "b": ["x y"]}'
torchrun t.py --name "$NAME" --json "$JSON" --q="a'b" --e "" --f '' x"y z"w --eq=" a "
A="--x 1
--y 2"
torchrun t.py $A "$A"
B='$HOME'; torchrun t.py "$B" \$B "\\" '\' "a\nb" "\`x\`"
torchrun t.py "a
b" c
printf -v _ x; torchrun t.py ~user "~" a~b
