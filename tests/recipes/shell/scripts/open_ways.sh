# bash takes one way, by what the machine has; the reader must not
if [ -d /proc/nothing ]; then
  TP=1; ARGS="--a 1"
else
  TP=2; ARGS="--b 1"
fi
[ -e /nothing ] && PP=2 || PP=4
case $(uname) in Nothing) CP=2; SAME=1 ;; *) CP=4; SAME=1 ;; esac
ls /nothing 2>/dev/null | grep -q x && EP=8
if [ -f /nothing ]; then SAME2=3; else SAME2=3; fi
torchrun t.py --tp $TP $ARGS --pp $PP --cp $CP --same $SAME $SAME2 --ep ${EP:-1}
