torchrun first.py
if [ -n "1" ]; then
  torchrun second.py
  exit 0
fi
torchrun never.py
