M=Qwen3-30B-A3B
if [[ $M == *30B* ]]; then EP=8; else EP=1; fi
if [[ "$M" =~ ^Qwen3 ]]; then Q=1; fi
if [[ $M == "Qwen*" ]]; then L=1; else L=0; fi
if [ "$M" = Qwen* ]; then G=1; else G=0; fi
if [[ -n $M && ( $EP -gt 4 || $Q == 2 ) ]]; then P=1; fi
if [ -z $NOTHING ]; then Z=1; fi
if [ -n $NOTHING ]; then Y=1; fi
torchrun t.py $EP $Q $L $G $P $Z $Y
