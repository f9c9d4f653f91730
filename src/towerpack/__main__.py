"""`python -m towerpack` is the `towerpack` command."""

from towerpack.cli import main

if __name__ == "__main__":
    main()
