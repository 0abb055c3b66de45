i=0
while true; do
  i=$((i+1))
  if [ $i -ge 3 ]; then break; fi
done
until [ $i -le 0 ]; do ((i--)); N+=a; done
for x in 1 2 3 4; do [ $x = 3 ] && continue; K+=$x; [ $x = 4 ] && break; done
torchrun t.py "$i" $N $K
