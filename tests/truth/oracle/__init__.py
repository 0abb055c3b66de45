"""Ground truth: the real frameworks, driven on one CPU without data and without a GPU.

What `rankscope verify` runs too lies in `simcore/verify/real`, and is imported as a part of this package.
"""

from pathlib import Path

__path__.append(str(Path(__file__).resolve().parents[3] / "simcore" / "verify" / "real"))
