"""Try the built wheel as its users will: in an empty environment, outside of the source tree.

    python tests/wheel.py [EXTRA…]

Without arguments one extra is tried, another one each day, and then `all` with its commands. With
`every` each extra is tried alone. The newest versions that the package allows are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA_ONLY = """
from towerpack.dataflow import BatchData, DataFromList, PrefetchData
flow = BatchData(PrefetchData(DataFromList([(n,) for n in range(64)]), num_proc=2), 8)
assert sum(len(batch[0]) for batch in flow) == 64
"""
# Programs that import what an extra is for; `towerpack doctor` runs with each of them.
PROGRAMS = {
    "apps": "import towerpack.apps, towerpack.zoo",
    "datasets": "import towerpack.dataflow.datasets",
    "export": "import onnx, onnxruntime",
    "formats": "import towerpack.dataflow.formats as f; f.LMDBData, f.HDF5Data, f.ParquetData",
    "image": "from towerpack.dataflow import imgaug; imgaug.Flip(horiz=True)",
    "pretrained": "import towerpack.apps",
    "remote": "from towerpack.dataflow.remote import RemoteDataZMQ",
    "rl": "import towerpack.rl",
    "serve": "import fastapi, uvicorn, httpx",
    "slim": "import tf_slim",
    "tensorboard": "import tensorboard",
    "tf": "import towerpack.training, towerpack.nn, towerpack.inference, towerpack.gan",
}
ALL = (
    ["doctor"],
    ["demo"],
    ["train", "digits", "fast_dev_run=true"],
)


def extras() -> list[str]:
    """Return the names of the extras that users install, but for `all`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(set(project["optional-dependencies"]) - {"all", "dev", "cuda"})


def try_extra(wheel: Path, extra: str) -> None:
    """Install the wheel with an extra into a new environment, and use it there."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / "bin" / "python"
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)

        def run(*command: str | Path) -> None:
            variables = {
                k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")
            }
            subprocess.run(command, cwd=folder, env=variables, check=True)

        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
        program = folder / "program.py"
        program.write_text(f"{DATA_ONLY}\n{PROGRAMS.get(extra, '')}\n")
        run(python, program)
        for command in ALL if extra == "all" else ALL[:1]:
            run(folder / "env" / "bin" / "towerpack", *command)
    print(f"== [{extra}] works, {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    """Try the extras of the command line."""
    wheels = list((ROOT / "dist").glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"dist/ must hold one wheel, and holds {len(wheels)}: run `make dist`.")
    names = sys.argv[1:]
    if names == ["every"]:
        names = ["", *extras(), "all"]
    elif not names:
        in_turn = ["", *extras()]
        names = [in_turn[int(time.time() // 86400) % len(in_turn)], "all"]
    for name in names:
        try_extra(wheels[0], name)


if __name__ == "__main__":
    main()
