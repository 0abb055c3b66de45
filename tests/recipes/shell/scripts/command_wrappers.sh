DRY=
RUN="${DRY:+echo} torchrun"
$RUN t.py --a
env A=1 torchrun t.py --b
nohup torchrun t.py --c
time torchrun t.py --d
command torchrun t.py --e
if ! torchrun t.py --f; then echo failed; exit 1; fi
