"""`python -m simcore` is `rankscope`."""

from simcore.cli import main

if __name__ == "__main__":
    main()
