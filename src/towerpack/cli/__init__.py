"""The `towerpack` command. One command, one module; this file only puts them together."""

from towerpack.cli._app import app as app
from towerpack.cli._app import main as main
