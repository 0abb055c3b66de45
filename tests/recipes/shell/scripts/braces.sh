torchrun t.py --x={1,2} {a,b}.txt --y '{1,2}' "{a,b}" {1..3} a{b}c {} --json '{"a": [1, 2]}' --z={"a":1}
