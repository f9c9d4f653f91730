"""The `towerpack` command. One command, one module; this file only puts them together."""

from towerpack.cli._app import app as app
from towerpack.cli._app import main as main
from towerpack.cli._apps import evaluate, infer, recipes, train
from towerpack.cli._bench import bench
from towerpack.cli._ckpt import ckpt_app
from towerpack.cli._ckpt_weights import average, convert, diff
from towerpack.cli._client import client
from towerpack.cli._data import data_app
from towerpack.cli._data_import import import_
from towerpack.cli._demo import demo
from towerpack.cli._doctor import doctor
from towerpack.cli._export import export
from towerpack.cli._grid_data import grid
from towerpack.cli._launch import launch
from towerpack.cli._model import model_app
from towerpack.cli._profile import profile
from towerpack.cli._runs import runs_app
from towerpack.cli._runs_curves import compare, ls, plot
from towerpack.cli._serve import serve_model
from towerpack.cli._serve_data import keys, serve
from towerpack.cli._tune import tune

ckpt_app.command()(diff)
ckpt_app.command()(convert)
ckpt_app.command()(average)
data_app.command()(grid)
data_app.command("import")(import_)
data_app.command()(profile)
data_app.command()(serve)
data_app.command()(keys)
runs_app.command()(ls)
runs_app.command()(compare)
runs_app.command()(plot)
app.add_typer(ckpt_app, name="ckpt")
app.add_typer(data_app, name="data")
app.add_typer(model_app, name="model")
app.add_typer(runs_app, name="runs")
app.command()(train)
app.command("eval")(evaluate)
app.command()(infer)
app.command()(tune)
app.command()(recipes)
app.command()(export)
app.command()(bench)
app.command()(client)
app.command()(demo)
app.command()(doctor)
app.command(context_settings={"allow_interspersed_args": False})(launch)
app.command("serve")(serve_model)
