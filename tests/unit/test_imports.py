"""What importing does not do.

Each test runs a small program in a fresh interpreter, because what was imported cannot be undone.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "towerpack"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
# The layers that know no framework are named once, in import-linter's contract, which does not see
# what the root package imports; these tests do.
BASE = ["towerpack", "towerpack.cli"] + [
    module
    for contract in CONTRACTS
    if "tensorflow" in contract.get("forbidden_modules", ())
    for module in contract["source_modules"]
]
FRAMEWORKS = {"tensorflow", "keras", "torch", "jax"}

# Prints what changed between the imports before and the imports after.
WITNESS = """
import contextlib, importlib, io, os, sys, threading

for name in {first!r}:
    importlib.import_module(name)
environment, threads, said = dict(os.environ), threading.enumerate(), io.StringIO()
hooks = sys.excepthook, threading.excepthook
with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
    for name in {then!r}:
        importlib.import_module(name)
if dict(os.environ) != environment:
    print("environment", set(os.environ.items()) ^ set(environment.items()))
if threading.enumerate() != threads:
    print("threads", threading.enumerate())
if said.getvalue():
    print("output", said.getvalue())
if (sys.excepthook, threading.excepthook) != hooks:
    print("hooks")
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    """Run the program, which must not fail."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def every_module() -> list[str]:
    paths = sorted(path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))
    names = [".".join(path.with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names if not name.endswith(".__main__")]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("towerpack", exclude_type_checking_imports=True, cache_dir=None)
    left = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    while ready := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in ready}
    assert not left, "these modules import each other, or import some that do"


def test_contract_names_every_lower_layer() -> None:
    lower = {path.name for path in PACKAGE.iterdir()} & {"_core", "config", "dataflow"}
    assert {f"towerpack.{name}" for name in lower} <= set(BASE), "add it to pyproject.toml"


@pytest.mark.parametrize("module", BASE)
def test_base_is_small_loads_no_framework_and_leaves_the_process_as_it_was(module: str) -> None:
    # NumPy sets an environment variable of its own for the time of its import.
    program = WITNESS.format(first=["numpy"], then=[module])
    done = python(f"{program}\nprint(*sys.modules)\nprint(open('/proc/self/statm').read().strip())")
    assert done.stderr == ""
    *said, modules, memory = done.stdout.splitlines()
    assert said == []
    assert FRAMEWORKS.isdisjoint(modules.split())
    assert int(memory.split()[1]) * resource.getpagesize() < 60e6


def test_commands_load_their_parts_when_they_run() -> None:
    modules = python("import sys, towerpack.cli; print(*sys.modules)").stdout.split()
    # `towerpack.dataflow` itself is a table of names.
    parts = ("apps.", "callbacks.", "dataflow.", "inference.", "serving.", "training.")
    prefixes = tuple(f"towerpack.{part}" for part in parts)
    assert [name for name in modules if name.startswith(prefixes)] == []


def test_all_is_imported_and_trained_quietly_and_leaves_the_process_as_it_was(
    tmp_path: Path,
) -> None:
    # Gymnasium sets an environment variable for pygame, TensorFlow and Keras set others, and Ray a
    # hook for exceptions.
    first = ["tensorflow", "keras", "gymnasium", "ray.train"]
    done = python(
        f"""
from towerpack._core.extras import require
require("tensorflow", extra="tf", needed_for="it")
{WITNESS.format(first=first, then=every_module())}
if 'tf_slim' in sys.modules:
    print("tf_slim")
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
from pathlib import Path
from small_training import train
train(Path({str(tmp_path)!r}), max_epoch=1)
"""
    )
    assert done.stdout == ""
    assert not [line for line in done.stderr.splitlines() if ".cc:" in line or "absl" in line]
    log = (tmp_path / "log.txt").read_text()
    assert ".cc:" in log
    assert "absl::InitializeLog" in log


def test_missing_framework_is_one_sentence_with_the_extra() -> None:
    done = python(
        """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
import towerpack
for name in towerpack.__all__:
    try:
        getattr(towerpack, name)
    except towerpack.MissingExtraError as error:
        print('pip install "towerpack[tf]"' in str(error))
"""
    )
    assert set(done.stdout.split()) <= {"True"}


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("tensorflow.keras", "tf"),
        ("PIL.Image", "image"),
        ("cv2", "image"),
        ("mlflow", "mlflow"),
        ("sklearn", "demo"),
        ("tf_slim", "slim"),
        ("zmq", "remote"),
    ],
)
def test_missing_package_is_explained(module: str, extra: str) -> None:
    from towerpack import MissingExtraError
    from towerpack._core.extras import explain_missing

    what = f"x needs the package '{module.partition('.')[0]}'"
    with pytest.raises(MissingExtraError, match=what) as caught, explain_missing("x"):
        raise ModuleNotFoundError("no", name=module)
    assert caught.value.fix == f'pip install "towerpack[{extra}]"'


def test_our_own_missing_module_is_not_blamed_on_an_extra() -> None:
    from towerpack._core.extras import explain_missing

    with pytest.raises(ModuleNotFoundError, match="typo"), explain_missing("x"):
        raise ModuleNotFoundError("typo", name="towerpack.typo")


# Underscore modules that other packages import, with the number of importing modules.
# This table may only shrink.
PRIVATE_IMPORTS = {
    "callbacks._confusion": 1,
    "dataflow._flow": 2,
    "dataflow.formats._hdf5": 1,
    "dataflow.formats._tfrecord": 1,
    "dataflow.sources._files": 1,
    "dataflow.stages._repeat": 2,
}


def test_no_package_imports_underscore_modules_of_another_package() -> None:
    graph = grimp.build_graph("towerpack", exclude_type_checking_imports=True, cache_dir=None)
    importers: dict[str, list[str]] = {}
    for module in sorted(graph.modules):
        for imported in graph.find_modules_directly_imported_by(module):
            package, *inner = imported.split(".")[1:] or [""]
            private = any(part.startswith("_") and not part.startswith("__") for part in inner)
            if private and module.split(".")[1:2] != [package]:
                importers.setdefault(imported.removeprefix("towerpack."), []).append(module)
    new = {k: v for k, v in importers.items() if len(v) > PRIVATE_IMPORTS.get(k, 0)}
    assert not new, "use a public name of the package, or rename the module without the underscore"
    counts = {name: len(modules) for name, modules in importers.items()}
    assert counts == PRIVATE_IMPORTS, "remove the entries of PRIVATE_IMPORTS that are gone"
