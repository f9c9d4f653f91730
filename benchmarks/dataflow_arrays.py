"""The array fast path beside a loop written by hand.

Both shuffle 50,000 images of 32 x 32 x 3 bytes with their labels, flip half of them, and batch them
by 128. They run in turns, so that a noisy machine troubles both alike; the ratio of the medians is
what counts. A second table times small batches, where the cost of a call shows.

    python benchmarks/dataflow_arrays.py
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    ItemRNG,
    MapData,
    RepeatedData,
    ShuffleData,
)

BATCH = 128


def flip(datapoint: tuple[np.ndarray, np.ndarray], rng: ItemRNG) -> tuple[np.ndarray, np.ndarray]:
    """Mirror half of the images."""
    images, labels = datapoint
    chosen = rng.random() < 0.5
    images[chosen] = images[chosen, :, ::-1]
    return images, labels


def flow(images: np.ndarray, labels: np.ndarray) -> BatchData:
    """What a user of the library writes."""
    ds = ShuffleData(DataFromArrays(images, labels))
    return BatchData(MapData(ds, flip, batched=True, rng=True), BATCH)


def by_hand(images: np.ndarray, labels: np.ndarray, seed: int) -> Iterator[Any]:
    """What a user of NumPy writes."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        batch = images[chosen]
        flipped = rng.random(BATCH) < 0.5
        batch[flipped] = batch[flipped, :, ::-1]
        yield batch, labels[chosen]


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def drain(batches: Any) -> None:
    """Use every batch a little, as training would."""
    for images, _ in batches:
        images[0, 0, 0, 0]


def compare(num_images: int = 50_000, rounds: int = 9) -> float:
    """The flow's rate as a share of the loop's, by medians over rounds in turns."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (num_images, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, num_images)
    ds = flow(images, labels)
    drain(ds.iterate(seed=0, epoch=0))
    drain(by_hand(images, labels, 0))
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        times[0].append(seconds(lambda i=i: drain(ds.iterate(seed=0, epoch=i))))
        times[1].append(seconds(lambda i=i: drain(by_hand(images, labels, i))))
    ours, theirs = map(statistics.median, times)
    sys.stdout.write(
        f"{num_images} images, shuffled, flipped, batched by {BATCH}, median of {rounds} passes\n"
        f"  flow     {num_images / ours:12,.0f} images/s\n"
        f"  by hand  {num_images / theirs:12,.0f} images/s\n"
        f"  ratio    {theirs / ours:12.2f}\n"
    )
    return theirs / ours


def small_batches(count: int = 20_000, rounds: int = 5) -> dict[int, float]:
    """Microseconds for `next` and `state` on batches of 64 numbers, beyond the gather itself."""
    x = np.random.default_rng(0).random((1437, 64), np.float32)
    y = np.arange(1437)
    beyond: dict[int, float] = {}
    for size in (32, 128):
        iterator = RepeatedData(BatchData(ShuffleData(DataFromArrays(x, y)), size)).iterate(seed=0)
        order = np.random.default_rng(0).permutation(1437)
        chosen = [order[i : i + size] for i in range(0, 1437 - size, size)]

        def gather(chosen: list[np.ndarray] = chosen) -> None:
            for i in range(count):
                rows = chosen[i % len(chosen)]
                x.take(rows, axis=0), y.take(rows, axis=0)

        def batches(iterator: Any = iterator) -> None:
            for _ in range(count):
                next(iterator)

        def states(iterator: Any = iterator) -> None:
            for _ in range(count):
                iterator.state()

        runs = [[seconds(f) for f in (batches, gather, states)] for _ in range(rounds)]
        a_next, a_gather, a_state = (
            1e6 * statistics.median(column) / count for column in zip(*runs, strict=True)
        )
        beyond[size] = a_next - a_gather
        sys.stdout.write(
            f"batches of {size} x 64: next {a_next:.1f} µs, of which gather {a_gather:.1f} µs; "
            f"state {a_state:.2f} µs\n"
        )
    return beyond


def main() -> None:
    """Print both tables."""
    compare()
    small_batches()


if __name__ == "__main__":
    main()
