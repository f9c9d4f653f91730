"""How cost grows: one row for each thing of which a run may have many.

    python benchmarks/growth.py [--only ROW …] [--quick | --large] [--rounds N] [--out DIR]

Each measurement is a process of its own, forked after all imports. Its preparation does not count.
The exponent of growth is the slope of the processor time between the two largest sizes, both axes
logarithmic: 0 is flat, 1 is linear. Small sizes are left out, since constants hide growth there.
`--large` adds sizes that take hours. The plot is `docs/images/growth.png`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import multiprocessing
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _measure as measure
import numpy as np
import start

REPORTS = Path(__file__).parent / "reports"
PLOT = Path(__file__).parents[1] / "docs" / "images" / "growth.png"


class Meter:
    """Context manager that measures its block: `seconds`, `cpu_s`, `mb` of peak memory added."""

    def __enter__(self) -> Meter:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._mb = _memory_mb("VmRSS")
        self._began, self._cpu_s = time.perf_counter(), _cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu_s = time.perf_counter() - self._began, _cpu_s() - self._cpu_s
        self.mb = _memory_mb("VmHWM") - self._mb


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _memory_mb(name: str) -> float:
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if name in x)
    return int(line.split()[1]) / 1024


# ---------------------------------------------------------------------------- what is measured


class Numbers(Sequence[tuple[int]]):
    """The numbers below `size`, which need no memory."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        return (index,)


def source(n: int, folder: Path, meter: Meter) -> None:
    from towerpack.dataflow import BatchData, DataFromList

    with meter:
        flow = BatchData(DataFromList(Numbers(n), shuffle=True), 100)
        for _ in itertools.islice(flow.iterate(seed=1), 10):
            pass


def layers(n: int, folder: Path, meter: Meter) -> None:
    _start("ours", n, meter)


def layers_fit(n: int, folder: Path, meter: Meter) -> None:
    _start("fit", n, meter)


def _start(contender: str, n: int, meter: Meter) -> None:
    with meter:
        start.CONTENDERS[contender](n)


def workers(n: int, folder: Path, meter: Meter) -> None:
    from towerpack.dataflow import BatchData, DataFromList, MapData, PrefetchData

    def work(row: tuple[int]) -> tuple[int]:
        return (sum(range(row[0] % 1000)),)

    with meter:
        flow = BatchData(MapData(DataFromList(Numbers(200_000), shuffle=True), work), 100)
        assert sum(1 for _ in PrefetchData(flow, n)) == 2000


def replicas(n: int, folder: Path, meter: Meter) -> None:
    import tensorflow as tf

    from towerpack import SyncMultiGPUTrainer

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * n)
    with meter:
        SyncMultiGPUTrainer(_config(folder, epochs=2, layers=10)).train()


def checkpoints_resume(n: int, folder: Path, meter: Meter) -> None:
    from towerpack import SimpleTrainer

    _many_checkpoints(n, folder)
    with meter:
        SimpleTrainer(_config(folder, epochs=2, keep=n + 1)).train()


def checkpoints_ls(n: int, folder: Path, meter: Meter) -> None:
    _many_checkpoints(n, folder)
    _command(meter, "ckpt", "ls", os.fspath(folder))


def stats(n: int, folder: Path, meter: Meter) -> None:
    from towerpack.callbacks.monitors import read_stats

    _write_stats(folder, n)
    with meter:
        assert len(read_stats(folder / "stats.jsonl")) == n // 10


def stats_resume(n: int, folder: Path, meter: Meter) -> None:
    from towerpack import SimpleTrainer

    SimpleTrainer(_config(folder, steps=n // 10)).train()
    _write_stats(folder, n)
    with meter:
        SimpleTrainer(_config(folder, epochs=2)).train()


def runs(n: int, folder: Path, meter: Meter) -> None:
    from towerpack import SimpleTrainer

    SimpleTrainer(_config(folder / "runs" / "0", epochs=20)).train()
    for i in range(1, n):
        shutil.copytree(folder / "runs" / "0", folder / "runs" / str(i), copy_function=os.link)
    _command(meter, "runs", "ls", os.fspath(folder / "runs"))


def lmdb(n: int, folder: Path, meter: Meter) -> None:
    _read_lmdb(n, folder, meter, None)


def lmdb_keys(n: int, folder: Path, meter: Meter) -> None:
    _read_lmdb(n, folder, meter, "%08d")


def _read_lmdb(n: int, folder: Path, meter: Meter, keys: str | None) -> None:
    from towerpack.dataflow import BatchData, DataFromList, LMDBData, LMDBSerializer

    LMDBSerializer.save(DataFromList(Numbers(n)), folder / "data.mdb")
    with meter:
        flow = BatchData(LMDBData(folder, shuffle=True, keys=keys), 100, remainder=True)
        for _ in itertools.islice(flow.iterate(seed=1), 10):
            pass


def epochs(n: int, folder: Path, meter: Meter) -> None:
    from towerpack import SimpleTrainer

    with meter:
        SimpleTrainer(_config(folder, epochs=n, workers=1)).train()


def pictures_start(n: int, folder: Path, meter: Meter) -> None:
    from towerpack.dataflow import BatchData, ImageFolder

    _many_pictures(n, folder)
    with meter:
        flow = BatchData(ImageFolder(folder, shuffle=True), 10)
        for _ in itertools.islice(flow.iterate(seed=1), 10):
            pass


def pictures_import(n: int, folder: Path, meter: Meter) -> None:
    _many_pictures(n, folder / "in")
    _command(meter, "data", "import", os.fspath(folder / "in"), "--out", os.fspath(folder / "out"))


def exports(n: int, folder: Path, meter: Meter) -> None:
    _export(n, folder, meter)


def exports_load(n: int, folder: Path, meter: Meter) -> None:
    from towerpack.inference import load_exported

    exported = _export(n, folder, Meter())
    with meter:
        model = load_exported(exported)
        model.run({"x": np.zeros([1, start.UNITS], np.float32)})


# ---------------------------------------------------------------------------- preparation


def _config(
    folder: Path,
    *,
    epochs: int = 1,
    steps: int = 1,
    layers: int = 1,
    keep: int = 5,
    workers: int = 0,
) -> Any:
    """Return a configuration of a small training with evaluations and checkpoints."""
    from towerpack import TrainConfig
    from towerpack.callbacks import InferenceRunner, ModelSaver, ScalarStats
    from towerpack.dataflow import BatchData, DataFromArrays, PrefetchData, RepeatedData

    rows = DataFromArrays(np.ones([8, start.UNITS], np.float32))
    flow: Any = RepeatedData(BatchData(rows, 8))
    return TrainConfig(
        model=_model(layers),
        dataflow=PrefetchData(flow, workers) if workers else flow,
        steps_per_epoch=steps,
        max_epoch=epochs,
        run_dir=folder,
        callbacks=[
            InferenceRunner(BatchData(rows, 8), ScalarStats("cost")),
            ModelSaver(max_to_keep=keep),
        ],
    )


def _model(layers: int) -> Any:
    import keras
    import tensorflow as tf

    from towerpack.nn import FullyConnected, expose

    def build(x: tf.Tensor) -> tf.Tensor:
        for i in range(layers):
            x = FullyConnected(f"layer{i}", x, start.UNITS)
        return tf.reduce_mean(expose("y", x) ** 2)

    specs = [tf.TensorSpec([None, start.UNITS], tf.float32, "x")]
    return specs, build, lambda: keras.optimizers.SGD(1e-3)


def _many_checkpoints(n: int, folder: Path) -> None:
    """Train n steps and save. Copy the checkpoint under the names of earlier steps."""
    from towerpack import SimpleTrainer
    from towerpack.checkpoint._manifest import parse_manifest

    SimpleTrainer(_config(folder, steps=n)).train()
    (newest,) = (folder / "checkpoints").glob("step-*")
    manifest = parse_manifest((newest / "manifest.json").read_bytes())
    for step in range(1, n):
        copy = shutil.copytree(newest, newest.with_name(f"step-{step:08d}"), copy_function=os.link)
        (copy / "manifest.json").unlink()
        (copy / "manifest.json").write_bytes(replace(manifest, step=step).to_bytes())


def _write_stats(folder: Path, values: int) -> None:
    scalars = {f"number{i}": i / 10 for i in range(10)}
    with open(folder / "stats.jsonl", "w") as file:
        for step in range(1, values // 10 + 1):
            record = {"step": step, "epoch": 1, "time": 1.7e9 + step, "scalars": scalars}
            print(json.dumps(record), file=file)


def _many_pictures(n: int, folder: Path) -> None:
    """Write n pictures of 16 × 16 in ten classes. All differ."""
    import cv2

    rng = np.random.default_rng(0)
    file = cv2.imencode(".jpg", rng.integers(0, 256, [16, 16, 3], np.uint8))[1].tobytes()
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
    for i in range(n):
        comment = b"\xff\xfe" + (10).to_bytes(2, "big") + b"%08d" % i
        (folder / str(i % 10) / f"{i}.jpg").write_bytes(file[:2] + comment + file[2:])


def _export(n: int, folder: Path, meter: Meter) -> Path:
    from towerpack import SimpleTrainer
    from towerpack.inference import export

    SimpleTrainer(_config(folder / "run", layers=n)).train()
    with meter:
        return export(_model(n), folder / "run", folder / "exported", outputs="y")


def _command(meter: Meter, *command: str) -> None:
    from typer.testing import CliRunner

    from towerpack.cli import app

    with meter:
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output


# ---------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        title: For tables and plots.
        function: What is measured.
        sizes: From the smallest to the largest.
        large: Further sizes, for which a machine needs time.
    """

    title: str
    function: Callable[[int, Path, Meter], None]
    sizes: Sequence[int]
    large: Sequence[int] = ()


def _powers(first: int, last: int) -> list[int]:
    return [10**power for power in range(first, last + 1)]


ROWS = [
    Row("shuffled rows: ten batches", source, [10**3, 10**6, 10**9, 10**12]),
    Row("layers: start", layers, [10, 30, 100, 300], [1000]),
    Row("layers: start of Keras fit", layers_fit, [10, 30, 100], [300, 1000]),
    Row("workers: 2,000 batches", workers, [1, 2, 4, 8]),
    Row("replicas: start and two steps", replicas, [1, 2, 4], [8]),
    Row("checkpoints: resuming", checkpoints_resume, _powers(1, 4)),
    Row("checkpoints: ckpt ls", checkpoints_ls, _powers(1, 4)),
    Row("values in stats.jsonl: reading", stats, _powers(4, 6), [10**7]),
    Row("values in stats.jsonl: resuming", stats_resume, _powers(4, 6), [10**7]),
    Row("runs: runs ls", runs, _powers(1, 3)),
    Row("records in LMDB: ten batches", lmdb, _powers(3, 6), [10**7]),
    Row("the same, keys='%08d'", lmdb_keys, _powers(3, 6), [10**7]),
    Row("epochs: training", epochs, _powers(1, 3), _powers(4, 5)),
    Row("pictures: ten batches", pictures_start, _powers(3, 5), [10**6]),
    Row("pictures: data import", pictures_import, _powers(3, 4), _powers(5, 6)),
    Row("layers: export", exports, [10, 30, 100, 300], [1000]),
    Row("layers: loading an export", exports_load, [10, 30, 100, 300], [1000]),
]
NAMES = [row.function.__name__ for row in ROWS]


def measured(name: str, n: int) -> dict[str, float]:
    """Measure a size in a process of its own: seconds, processor seconds and MB."""
    context = multiprocessing.get_context("fork")
    answer, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(name, n, sender))
    process.start()
    sender.close()
    try:
        return answer.recv()
    except EOFError:
        raise RuntimeError(f"{name} of {n} failed") from None
    finally:
        process.join()


def _run(name: str, n: int, sender: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        ROWS[NAMES.index(name)].function(n, Path(folder), meter)
    sender.send({"seconds": meter.seconds, "cpu_s": meter.cpu_s, "mb": meter.mb})


def _import_all() -> None:
    """Import everything that rows use. TensorFlow has no threads before it computes something."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import cv2
    import keras
    import tensorflow as tf
    import typer.testing

    import towerpack.cli
    import towerpack.inference

    # Resolve what is loaded lazily.
    assert cv2.imencode and typer.testing and towerpack.cli.app and towerpack.inference.export
    assert keras.optimizers and tf.function and towerpack.SimpleTrainer
    gc.freeze()


HEADER = ["", "size", "seconds", "CPU seconds", "MB", "exponent"]
Found = Mapping[str, Mapping[str, Mapping[str, float]]]


def exponent(sizes: Mapping[str, Mapping[str, float]]) -> float:
    """Return the slope of processor time over size in logarithms, for the two largest sizes."""
    (n, low), (m, high) = list(sizes.items())[-2:]
    return math.log(high["cpu_s"] / low["cpu_s"]) / math.log(int(m) / int(n))


def rows_of(found: Found) -> Iterator[list[str]]:
    """Return the rows of the table."""
    for row in ROWS:
        sizes = found.get(row.function.__name__, {})
        for n, each in sizes.items():
            values = [measure.digits(max(each[k], 1e-3)) for k in ("seconds", "cpu_s")]
            last = f"{exponent(sizes):.2f}" if n == list(sizes)[-1] and len(sizes) > 1 else ""
            yield [row.title, f"{int(n):,}", *values, f"{max(0, each['mb']):,.0f}", last]


def draw(found: Found, path: Path) -> None:
    """Draw the processor time of all rows over their sizes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    rows = [row for row in ROWS if row.function.__name__ in found]
    columns = min(4, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3 * columns, 2.3 * lines), squeeze=False)
    for axis in axes.flat[len(rows) :]:
        axis.set_visible(False)
    for row, axis in zip(rows, axes.flat, strict=False):
        sizes = found[row.function.__name__]
        ns, cpu = [int(n) for n in sizes], [each["cpu_s"] for each in sizes.values()]
        axis.loglog(ns, cpu, "o-", markersize=4)
        top = cpu[-1] / ns[-1]
        axis.loglog(ns, [top * n for n in ns], ":", color="gray", linewidth=1)
        axis.set_ylim(min(cpu) / 5, max(cpu) * 5)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_minor_formatter(NullFormatter())
        slope = f", exponent {exponent(sizes):.2f}" if len(sizes) > 1 else ""
        axis.set_title(row.title + slope, fontsize=7)
        axis.tick_params(labelsize=7)
    figure.supylabel("processor seconds (dotted: linear)", fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print, write the report and the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--quick", action="store_true", help="the smallest size of each row")
    parser.add_argument("--large", action="store_true", help="sizes that take hours, too")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=REPORTS, help="directory for the report")
    parser.add_argument("--plot", type=Path, default=PLOT)
    args = parser.parse_args()
    _import_all()
    file = args.out / "growth.json"
    found: dict[str, Any] = json.loads(file.read_text())["rows"] if file.exists() else {}
    for row in ROWS:
        name = row.function.__name__
        if name not in args.only:
            continue
        sizes = row.sizes[:1] if args.quick else [*row.sizes, *(row.large if args.large else ())]
        found[name] = {}
        for n in sizes:
            turns = [measured(name, n) for _ in range(args.rounds)]
            found[name][str(n)] = {k: statistics.median(t[k] for t in turns) for k in turns[0]}
            print(row.title, f"{n:,}", found[name][str(n)], flush=True)
            write(found, args.out)
    print(measure.table(HEADER, [*rows_of(found)]))
    draw(found, args.plot)


def write(found: Found, folder: Path) -> None:
    """Write the report."""
    about = measure.circumstances(["tensorflow", "keras", "numpy"])
    table = measure.table(HEADER, [*rows_of(found)])
    parts = ["# How cost grows", "`python benchmarks/growth.py`", measure.described(about), table]
    folder.mkdir(parents=True, exist_ok=True)
    rows = {"circumstances": about, "rows": found}
    (folder / "growth.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "growth.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
