"""The `towerpack` command. The module of a command has its name: `data grid` is `_data_grid`."""

from importlib import import_module
from typing import Final

import typer

from towerpack.cli._app import app as app
from towerpack.cli._app import main as main

_COMMANDS: Final = {
    "": "train eval infer tune recipes export bench client demo doctor launch serve",
    "ckpt": "ls show diff convert average",
    "data": "import inspect speed profile grid serve keys index shard",
    "model": "show",
    "runs": "show ls compare plot batch data spikes rewind",
}
_HELP: Final = {
    "ckpt": "Show, compare and convert checkpoints.",
    "data": "Import, show and measure data.",
    "model": "Show models.",
    "runs": "Show, compare and rewind runs, and show their data.",
}


def _add_commands() -> None:
    for prefix, names in _COMMANDS.items():
        group = typer.Typer(help=_HELP[prefix], no_args_is_help=True) if prefix else app
        for name in names.split():
            module = import_module("_".join(filter(None, (f"{__name__}.", prefix, name))))
            # `eval` and `import` are Python keywords or built-ins, so their functions end with `_`.
            function = getattr(module, name, None) or getattr(module, f"{name}_")
            # Arguments after a script belong to the script.
            settings = {"allow_interspersed_args": name != "launch"}
            group.command(name, context_settings=settings)(function)
        if prefix:
            app.add_typer(group, name=prefix)


_add_commands()
