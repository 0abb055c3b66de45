A='a b'
B="x  y"
torchrun t.py $A "$A" '$A' "\$A" \$A "it's" 'say "hi"' a\ b "" '' $'t\tt' --x="$B" pre$A"post" "${A}"$B "$A$B" *.nomatch
