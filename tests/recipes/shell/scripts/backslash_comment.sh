torchrun t.py \
    --a 1 \
    `# an inline comment` \
    --b 2 \
    --c 3
