TP=2
source ./conf.sh
torchrun t.py --tp ${TP:-1} --pp ${PP:-1}
