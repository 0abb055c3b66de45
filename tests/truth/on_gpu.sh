#!/usr/bin/env bash
# Real training steps on one GPU, stored as measured rows: see docs/on-gpu.md.
#
#     TRUTH=folder [WHEELS=folder] [TOPOLOGY=dgx-h200] [STEPS="fsdp2-llama ..."] tests/truth/on_gpu.sh [--minutes 25]
#
# Parts run in the order of their value, each in a process of its own with a limit, and write their files as soon as
# they have them: what is there when the time is over stays. Needs no network. A part that misses a package says so.
set -u
cd "$(dirname "$0")/../.." || exit 2

MINUTES=25 DEVICE=cuda
while [ $# -gt 0 ]; do
    case $1 in
        --minutes) MINUTES=${2:?} && shift ;;
        --device) DEVICE=${2:?} && shift ;; # cpu: small models, to try the script out
        *) echo "usage: TRUTH=folder tests/truth/on_gpu.sh [--minutes N] [--device cpu]" >&2 && exit 2 ;;
    esac
    shift
done
: "${TRUTH:?folder that the results are written to}"
PYTHON=${PYTHON:-python3} WHEELS=${WHEELS:-} TOPOLOGY=${TOPOLOGY:-} MAKERS=${MAKERS:-on_gpu}
END=$(($(date +%s) + MINUTES * 60)) FAILED=0
mkdir -p "$TRUTH" && TRUTH=$(cd "$TRUTH" && pwd) || exit 2
# Not all of tests/truth: folders of data in it have the names of packages, which PEFT would take for them.
mkdir -p "$TRUTH/.path" && ln -sfn "$PWD/tests/truth/on_gpu" "$PWD/tests/truth/oracle" "$TRUTH/.path/"
export PYTHONPATH="$PWD:$TRUTH/.path${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error

left() { echo $((END - $(date +%s))); }
say() { echo "$(date +%H:%M:%S) $*" | tee -a "$TRUTH/log.txt"; }

# part NAME SECONDS COMMAND...: runs it for that long at most, and no longer than there is time; its output is NAME.log.
part() {
    local name=$1 limit=$2 seconds code
    shift 2
    seconds=$(left)
    if [ "$seconds" -lt 15 ]; then say "$name: left out, no time is left" && return 1; fi
    [ "$seconds" -lt "$limit" ] && limit=$seconds
    timeout --kill-after=5 "$limit" "$@" > "$TRUTH/$name.log" 2>&1 < /dev/null
    code=$?
    case $code in
        0) say "$(tail -n 1 "$TRUTH/$name.log")" ;;
        3) say "$(tail -n 1 "$TRUTH/$name.log")" ;; # a package is missing
        124 | 137) say "$name: stopped after $limit s" ;;
        *) FAILED=1 && say "$name: error $code, the last of $name.log: $(tail -n 1 "$TRUTH/$name.log")" ;;
    esac
    return $code
}

# Wheels one by one: one that does not suit this Python does not keep the others out.
for wheel in ${WHEELS:+"$WHEELS"/*.whl}; do
    export PYTHONPATH="$TRUTH/.site:$PYTHONPATH"
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$TRUTH/.site" "$wheel" \
        > "$TRUTH/wheels.log" 2>&1 || say "wheel ${wheel##*/}: not installed: $(tail -n 1 "$TRUTH/wheels.log")"
done
"$PYTHON" -m on_gpu.found "$DEVICE" "$TOPOLOGY" > "$TRUTH/found.txt" 2>&1 || { cat "$TRUTH/found.txt" && exit 2; }
tee -a "$TRUTH/log.txt" < "$TRUTH/found.txt"
TOPOLOGY=$(sed -n 's/^topology: //p' "$TRUTH/found.txt")

# The engine itself needs packages that torch does not bring.
has_engine() { "$1" -c 'import simcore.cli.app, simcore.calibration.write' 2> "$TRUTH/engine.txt"; }
ENGINE=$PYTHON
has_engine "$PYTHON" || { say "missing: rankscope's own packages in $PYTHON: $(tail -n 1 "$TRUTH/engine.txt")" &&
    ENGINE=.venv/bin/python; }
[ "$ENGINE" = "$PYTHON" ] || has_engine "$ENGINE" || ENGINE=

calibrate() { # NAME SECONDS [--quick]
    local name=$1 limit=$2
    shift 2
    [ "$ENGINE" = "$PYTHON" ] || { say "$name: left out, $PYTHON has not rankscope's own packages" && return; }
    [ -n "$TOPOLOGY" ] || { say "$name: left out, no topology is known: give TOPOLOGY" && return; }
    part "$name" "$limit" "$PYTHON" -m simcore calibrate --topology "$TOPOLOGY" --device "$DEVICE" --force \
        ${CALIBRATED:+--model "$CALIBRATED"} --out "$TRUTH/$name.yaml" --topology-out "$TRUTH/$name-machine.yaml" "$@"
}

CALIBRATED=${CALIBRATED:-$([ "$DEVICE" = cuda ] || echo nemotron-3-tiny)} # whose shapes are calibrated
calibrate calibration-quick 240 --quick
for step in ${STEPS:-$("$PYTHON" -m on_gpu.cases)}; do
    part "$step" "$("$PYTHON" -m on_gpu.cases "$step")" "$PYTHON" -m on_gpu.step "$step" --into "$TRUTH" \
        --topology "$TOPOLOGY" --device "$DEVICE" --makers "$MAKERS"
done
[ "$(left)" -ge "${FULL:-180}" ] && calibrate calibration "$(left)"

# What the engine says beside it needs no GPU: it runs here where there is time and rankscope's packages are installed.
for snapshot in "$TRUTH"/*.pickle "$TRUTH"/*.trace.json.gz; do
    { [ -n "$ENGINE" ] && [ "$DEVICE" = cuda ]; } || break # of a CPU there is no snapshot, and no kernel in a trace
    name=$(basename "$snapshot") && name=${name%.pickle} && name=${name%.trace.json.gz}
    grep -qs '"scenario"' "$TRUTH/$name.jsonl" || continue
    part "read-$(basename "$snapshot")" 60 "$ENGINE" -m simcore read "$snapshot" "$TRUTH/$name.yaml" > /dev/null
done
# 1: an error is outside of its tolerance, which is an answer
[ -z "$ENGINE" ] ||
    part validate 60 bash -c '"$0" -m simcore validate "$1" || [ $? = 1 ]' "$ENGINE" "$TRUTH" > /dev/null
say "rows of $(cat "$TRUTH"/*.jsonl 2> /dev/null | wc -l) steps in $TRUTH; again: rankscope validate $TRUTH"
exit $FAILED
