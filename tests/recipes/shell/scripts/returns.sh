pick() {
  if [ "$1" = 7b ]; then L=32; H=4096; return; fi
  if [ "$1" = 13b ]; then L=40; H=5120; return 0; fi
  L=80; H=8192
}
pick 13b
torchrun t.py $L $H
pick 70b
torchrun t.py $L $H
SIZE=7b
case "$SIZE" in
  7b|8b) TP=1 ;;
  "13b") TP=2 ;;
  *) echo bad; exit 1 ;;
esac
torchrun t.py $TP
