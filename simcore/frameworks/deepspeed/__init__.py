"""DeepSpeed 0.19.6: ZeRO-1, ZeRO-2 and ZeRO-3, with offload to the host and to drives, and hpZ."""
