"""One contender of `data_loading.py`, as a process that takes turns.

    python _loading_contenders.py WORKLOAD NAME DIRECTORY [--quick]

Each function below is a program as its library's documentation would have it, and makes from a
workload what gives the batches of an epoch. A turn is a whole epoch, begun when it is asked for;
workers stay from epoch to epoch where a library lets them.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _loading_workloads import (
    SIZE,
    WORKLOADS,
    Mapped,
    Memory,
    Photos,
    Tiny,
    Workload,
    flip_and_scale,
    parse,
)

Epochs = Callable[[int], Iterator[Any]]
WORKERS = 2


def serial(work: Workload) -> Epochs:
    """One process, in place: half of what two workers could reach."""

    def epoch(number: int) -> Iterator[Any]:
        if isinstance(work, Photos):
            buffer = np.empty((work.batch_size, SIZE, SIZE, 3), np.uint8)
            for indices in work.order(number):
                for row, index in zip(buffer, indices, strict=False):
                    work.load_into(int(index), row)
                yield (buffer[: len(indices)],)
        elif isinstance(work, Mapped):
            buffer = np.empty((work.batch_size, SIZE, SIZE, 3), np.uint8)
            for indices in work.order(number):
                rows = buffer[: len(indices)]
                np.take(work.images, indices, axis=0, out=rows, mode="clip")
                yield (rows,)
        else:
            for indices in work.order(number):
                yield work.load_batch(indices)

    return epoch


def towerpack(work: Workload, *, backend: Any = None) -> Epochs:
    from towerpack.dataflow import (
        BatchData,
        DataFromArrays,
        MapData,
        PrefetchData,
        ShuffleData,
        empty_row,
    )

    def photo(dp: Any) -> Any:
        row = empty_row((SIZE, SIZE, 3), np.uint8)
        work.load_into(int(dp[0]), row)
        return (row,)

    if isinstance(work, Mapped):
        flow = ShuffleData(DataFromArrays(work.images))
    elif isinstance(work, Tiny):
        flow = ShuffleData(DataFromArrays(work.records[: work.n]))
        flow = MapData(flow, lambda dp: parse(dp[0]))
    else:
        flow = ShuffleData(DataFromArrays(np.arange(work.n)))
        load = photo if isinstance(work, Photos) else lambda dp: work.load(int(dp[0]))
        flow = MapData(flow, load)
    flow = BatchData(flow, work.batch_size, remainder=True)
    flow = PrefetchData(flow, num_proc=WORKERS, backend=backend)
    return lambda number: flow.iterate(seed=0, epoch=number)


def towerpack_memory(work: Memory) -> Epochs:
    from towerpack.dataflow import BatchData, DataFromArrays, ItemRNG, MapData, ShuffleData

    def augment(dp: Any, rng: ItemRNG) -> Any:
        return flip_and_scale(dp[0], rng.random() < 0.5), dp[1]

    flow = ShuffleData(DataFromArrays(work.images, work.labels))
    flow = MapData(flow, augment, batched=True, rng=True)
    flow = BatchData(flow, work.batch_size, remainder=True)
    return lambda number: flow.iterate(seed=0, epoch=number)


def towerpack_threads(work: Workload) -> Epochs:
    return towerpack(work, backend="thread")


def towerpack_processes(work: Workload) -> Epochs:
    return towerpack(work, backend="process")


def towerpack_part(work: Photos) -> Epochs:
    """The same pixels by Towerpack's own function: the rows below a crop are not decoded."""
    work.parts_only = True
    return towerpack(work)


def numpy_memory(work: Memory) -> Epochs:
    """A loop by hand, vectorised."""
    return lambda number: (work.load_batch(indices) for indices in work.order(number))


class _Dataset:
    """For PyTorch: a map-style data set."""

    def __init__(self, work: Workload) -> None:
        self._work = work

    def __len__(self) -> int:
        return self._work.n

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        return self._work.load(index)


class _BatchDataset(_Dataset):
    """One that fetches a batch at a time, as PyTorch allows; with collation left out."""

    def __getitems__(self, indices: list[int]) -> Any:
        import torch

        return tuple(
            torch.from_numpy(np.ascontiguousarray(c))
            for c in self._work.load_batch(np.asarray(indices))
        )


def _same(batch: Any) -> Any:
    return batch


def torch_loader(
    work: Workload, dataset: Any = None, workers: int = WORKERS, **options: Any
) -> Epochs:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(
        dataset or _Dataset(work),
        batch_size=work.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        **options,
    )
    return lambda number: iter(loader)


def torch_batched(work: Workload) -> Epochs:
    return torch_loader(work, _BatchDataset(work), collate_fn=_same)


def torch_memory(work: Memory) -> Epochs:
    return torch_loader(work, workers=0)


def torchdata_threads(work: Workload) -> Epochs:
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

    class Indices:
        """Another order each time it is iterated."""

        number = -1

        def __iter__(self) -> Iterator[np.ndarray]:
            Indices.number += 1
            return work.order(Indices.number)

    node = ParallelMapper(
        IterableWrapper(Indices()), work.load_batch, num_workers=WORKERS, method="thread"
    )
    loader = Loader(node)
    return lambda number: iter(loader)


def _grain_source(work: Workload, number: int) -> Any:
    import grain

    return grain.MapDataset.range(work.n).shuffle(seed=number).map(work.load)


def grain_threads(work: Workload) -> Epochs:
    import grain

    options = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=4 * work.batch_size)
    return lambda number: iter(
        _grain_source(work, number).to_iter_dataset(options).batch(work.batch_size)
    )


def grain_memory(work: Memory) -> Epochs:
    return lambda number: iter(_grain_source(work, number).batch(work.batch_size))


def grain_processes(work: Workload) -> Epochs:
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["benchmark"])
    # Its workers do not outlive an iterator; epochs are strung together, so that they do.
    data = grain.MapDataset.range(work.n).shuffle(seed=0).map(work.load)
    data = data.batch(work.batch_size).repeat()
    data = data.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
    batches = iter(data.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS)))
    count = -(-work.n // work.batch_size)
    return lambda number: (next(batches) for _ in range(count))


def spdl_threads(work: Workload) -> Epochs:
    from spdl.pipeline import PipelineBuilder

    def epoch(number: int) -> Iterator[Any]:
        builder = PipelineBuilder().add_source(work.order(number))
        builder = builder.pipe(work.load_batch, concurrency=WORKERS, output_order="input")
        pipeline = builder.add_sink(4).build(num_threads=WORKERS)
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


def tf_data(work: Workload) -> Epochs:
    """Its own operations for photographs; Python functions otherwise."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    options = tf.data.Options()
    options.threading.private_threadpool_size = WORKERS
    options.threading.max_intra_op_parallelism = 1

    def photo(path: Any) -> Any:
        data = tf.io.read_file(path)
        shape = tf.image.extract_jpeg_shape(data)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([0, 0, 4]), area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3, dct_method="INTEGER_FAST")
        image = tf.image.resize(image, (SIZE, SIZE))
        return tf.cast(tf.image.random_flip_left_right(image), tf.uint8)

    if isinstance(work, Photos):
        data = tf.data.Dataset.from_tensor_slices([work.path(i) for i in range(work.n)])
        data = data.shuffle(work.n).map(photo, num_parallel_calls=WORKERS).batch(work.batch_size)
    else:
        types = [array.dtype for array in work.load_batch(np.arange(2))]
        data = tf.data.Dataset.range(work.n).shuffle(work.n).batch(work.batch_size)
        data = data.map(
            lambda index: tf.numpy_function(work.load_batch, [index], types),
            num_parallel_calls=WORKERS,
        )
    data = data.prefetch(2).with_options(options)
    return lambda number: data.as_numpy_iterator()


def tf_data_memory(work: Memory) -> Epochs:
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1

    def augment(images: Any, labels: Any) -> Any:
        return tf.cast(tf.image.random_flip_left_right(images), tf.float32) / 255, labels

    data = tf.data.Dataset.from_tensor_slices((work.images, work.labels)).shuffle(work.n)
    data = data.batch(work.batch_size).map(augment).with_options(options)
    return lambda number: data.as_numpy_iterator()


def tensorpack_memory(work: Memory) -> Epochs:
    from tensorpack import dataflow as td

    flow = td.DataFromList(list(range(work.n)), shuffle=True)
    flow = td.MapData(flow, lambda index: list(work.load(index)))
    flow = td.BatchData(flow, work.batch_size, remainder=True)
    flow.reset_state()
    return lambda number: iter(flow)


def tensorpack_runner(work: Workload) -> Epochs:
    """Two clones of the whole flow, as its tutorials do: items repeat and are missing."""
    from tensorpack import dataflow as td

    flow = td.DataFromList(list(range(work.n)), shuffle=True)
    flow = td.MapData(flow, lambda index: list(work.load(index)))
    flow = td.BatchData(flow, work.batch_size, remainder=True)
    flow = td.MultiProcessRunnerZMQ(flow, num_proc=WORKERS)
    flow.reset_state()
    return lambda number: iter(flow)


CONTENDERS: dict[str, Callable[[Any], Epochs]] = {
    "serial": serial,
    "towerpack": towerpack,
    "towerpack-threads": towerpack_threads,
    "towerpack-processes": towerpack_processes,
    "torch": torch_loader,
    "torch-batched": torch_batched,
    "torchdata-threads": torchdata_threads,
    "grain-threads": grain_threads,
    "grain-processes": grain_processes,
    "spdl-threads": spdl_threads,
    "tf-data": tf_data,
    "tensorpack-runner": tensorpack_runner,
}
WITHOUT_WORKERS: dict[str, Callable[[Any], Epochs]] = {
    "numpy": numpy_memory,
    "towerpack": towerpack_memory,
    "torch": torch_memory,
    "grain": grain_memory,
    "tf-data": tf_data_memory,
    "tensorpack": tensorpack_memory,
}


def as_arrays(batch: Any) -> list[np.ndarray]:
    """The components of a batch of any contender, without a copy."""
    parts = batch if isinstance(batch, (tuple, list)) else [batch]
    return [np.asarray(part) for part in parts]


def run(work: Workload, epochs: Epochs, gate: Any) -> None:
    """Take turns; the first one adds up all numbers, later ones look at one of each batch."""
    number = 0
    more = gate.open()
    while more:
        total = count = 0
        for batch in epochs(number):
            arrays = as_arrays(batch)
            count += len(arrays[0])
            if number == 0:
                total += sum(int(array.sum(dtype=np.int64)) for array in arrays)
            else:
                total += int(arrays[0].reshape(-1)[0])
        if count != work.n:
            raise RuntimeError(f"{count} items came instead of {work.n}")
        number += 1
        more = gate.epoch_done(lambda total=total: total)


def contenders(workload: str) -> dict[str, Callable[[Any], Epochs]]:
    """Who takes part in a workload."""
    if workload == "memory":
        return WITHOUT_WORKERS
    # The one that does just what Towerpack does by default.
    same = "towerpack-threads" if workload == "mapped" else "towerpack-processes"
    found = {name: make for name, make in CONTENDERS.items() if name != same}
    return found | {"towerpack-part": towerpack_part} if workload == "photos" else found


def main() -> None:
    """Parse, build, run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("name")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--first", action="store_true", help="give one batch and end")
    arguments = parser.parse_args()

    work = WORKLOADS[arguments.workload](arguments.directory, quick=arguments.quick)
    make = contenders(arguments.workload)[arguments.name]
    if arguments.first:
        first = as_arrays(next(iter(make(work)(0))))
        print(len(first[0]), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)  # how each ends is not what is measured

    import _measure as measure

    gate = measure.Gate(work.n)  # first: from here on, what is printed goes nowhere
    run(work, make(work), gate)


if __name__ == "__main__":
    main()
