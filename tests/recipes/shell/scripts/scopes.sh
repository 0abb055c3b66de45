TP=1
(TP=2; torchrun in.py $TP)
torchrun out.py $TP
f() { local TP=5; PP=6; torchrun f.py $TP; }
f
torchrun out2.py $TP $PP
TP=7 torchrun pre.py --tp $TP
torchrun out3.py $TP
bash -c 'torchrun inner.py --tp "${TP:-none}"'
export TP
bash -c 'TP=9; torchrun inner2.py --tp $TP'
torchrun out4.py $TP
