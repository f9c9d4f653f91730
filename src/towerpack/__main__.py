"""Entry point of `python -m towerpack`, which is the `towerpack` command."""

from towerpack.cli import main

if __name__ == "__main__":
    main()
