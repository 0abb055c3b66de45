A=${A-a} B=${B:-} C="${C:-"x y"}" D=${D:-$A$A} E=${E:=e} F="${E:+f g}" G=${NOPE:+g}
torchrun t.py $A "$B" "$C" $C $D $E "$F" $F "$G" $G ${H:-'h i'} "${I:-'i'}" ${J:-"a b" c} ${K-\$x} ${L:-{1,2}} ${M:-a/b} ${A:+"$A z"}
P=${Q:-${R:-${S:-deep}}}
torchrun t.py ${P^} ${P:1} ${P:1:2} ${P/e/E} ${P//e/E} ${P#d} ${P%p} ${#P}
