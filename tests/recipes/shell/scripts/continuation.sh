torchrun \
  t.py \
  --a 1 \
  # comment ends the command
torchrun t.py --b 2 \
  --c "3 \
4" \
\
  --d
OPTIONS=" \
    --e 5 \
    --f 6 \
"
torchrun t.py $OPTIONS
torchrun t.py --a=1#no --b '#' "#c" # comment
