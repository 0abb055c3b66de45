printf -v NAME "%s-%d" run 7
read -r A B <<< "3 4"
IFS=, read -ra GPUS <<< "0,1,2,3"
torchrun t.py $NAME $A $B ${#GPUS[@]}
