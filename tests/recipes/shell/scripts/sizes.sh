MODEL_SIZE=${MODEL_SIZE:-7}
if [[ $MODEL_SIZE == 7 ]]; then HIDDEN=4096; HEADS=32; LAYERS=32; FFN=11008
elif [[ $MODEL_SIZE == 13 ]]; then HIDDEN=5120; HEADS=40; LAYERS=40; FFN=13824
elif [[ $MODEL_SIZE == "tiny" ]]; then HIDDEN=128; HEADS=4; LAYERS=4; FFN=512
else echo "invalid arg for MODEL_SIZE"; exit 1
fi
case "${PR:-bf16}" in
  fp16) PR_OPTS="--fp16 --apply-query-key-layer-scaling" ;;
  bf16) PR_OPTS="--bf16" ;;
esac
if [ ${FP8:-false} = true ]; then FP8_OPTS="--fp8-format hybrid"; elif [ ${FP8:-false} = false ]; then FP8_OPTS="
"; fi
if [ -z "${AC:-}" ] || [ "$AC" = sel ]; then AC_OPTS="--recompute-activations"; fi
torchrun pretrain.py --num-layers ${LAYERS} --hidden-size ${HIDDEN} --ffn $FFN --heads $HEADS ${PR_OPTS} ${FP8_OPTS} ${AC_OPTS-}
