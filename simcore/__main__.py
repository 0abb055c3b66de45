"""`python -m simcore` is `rankscope`."""

from simcore.cli.app import main

if __name__ == "__main__":
    main()
