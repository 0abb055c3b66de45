P=/a/b/model-7b.tar.gz
M="Llama-3.1-8B"
torchrun t.py ${P%.*} ${P%%.*} ${P#*/} ${P##*/} ${M/-/_} ${M//-/_} ${M,,} ${M^^} ${M:0:5} ${M:6} ${#M} ${M%-*} ${M/#Llama/Qwen} ${M/%8B/70B} ${M: -2}
