for i in 1 2 3; do
  for j in a b; do
    [ $j = b ] && [ $i = 2 ] && break 1
    P+="$i$j,"
  done
done
n=8; k=0
while (( n > 1 )); do n=$((n/2)); k=$((k+1)); done
for f in *.nothing; do G=$f; done
arr=(x y z)
for i in "${!arr[@]}"; do :; done
for ((i=0;i<${#arr[@]};i++)); do Q+="${arr[$i]}$i"; done
for a; do NEVER=1; done
torchrun t.py "$P" $k $Q "$G" ${NEVER:-no}
