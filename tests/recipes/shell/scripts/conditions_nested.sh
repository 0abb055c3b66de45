A=1 B=2 C=
if [ $A = 1 ]; then
  if [ $B = 1 ]; then X=11
  elif [ $B = 2 ] && [ -z "$C" ]; then
    case $A$B in 12) X=12 ;; *) X=13 ;; esac
  else X=14; fi
else X=15
fi
[ $A -lt 2 -a $B -gt 1 ] && Y=1
[[ ! ( $A == 2 || $B == 1 ) ]] && Z=1
[ ! -z "$A" ] && W=1
if ! [ $A = 2 ]; then V=1; fi
if [ "x$C" = "x" ]; then U=1; fi
if [[ "$A" -eq 1 && "$B" -ge 2 || -n "$C" ]]; then T=1; fi
[[ $B =~ ^[0-9]+$ ]] && S=1
if [ "$A" == "1" ] ; then R=1 ; fi
torchrun t.py $X $Y $Z $W $V $U $T $S $R
