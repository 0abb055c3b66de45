: ${TP:=2}
: "${PP:=4}"
SET=yes
EMPTY=
torchrun t.py $TP $PP ${SET:+--set} ${UNSET:+--unset} ${EMPTY:+--empty} ${EMPTY+there} ${EMPTY:-d} ${EMPTY-e} "${UNSET-}" "${UNSET:-x y}" ${SET:-no} ${DEEP:-${TP:-9}}
