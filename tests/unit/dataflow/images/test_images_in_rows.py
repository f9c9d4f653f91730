"""What the library makes of images goes straight into the batch, where nobody else can see it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack.dataflow import (
    AugmentImageComponents,
    BatchData,
    CacheData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    ImageFromFile,
    MapData,
    MapDataComponent,
    empty_row,
    imgaug,
)
from towerpack.dataflow._batch_rows import RowLender
from towerpack.dataflow.images import DecodeRandomCrop, encode_jpeg

PICTURES = np.random.default_rng(0).integers(0, 256, (24, 20, 24, 3), np.uint8)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each component that was stacked, whether that took no copy."""
    results: list[bool] = []
    whole = RowLender.whole

    def watched(lender: RowLender, arrays: Sequence[Any]) -> Any:
        result = whole(lender, arrays)
        results.append(result is not None)
        return result

    monkeypatch.setattr(RowLender, "whole", watched)
    return results


def same(a: DataFlow, b: DataFlow) -> bool:
    pairs = zip(a.iterate(seed=1, epoch=0), b.iterate(seed=1, epoch=0), strict=True)
    return all(
        np.array_equal(x, y) and x.dtype == y.dtype
        for one, two in pairs
        for x, y in zip(one, two, strict=True)
    )


def jpegs() -> DataFlow:
    files = [encode_jpeg(picture[: 12 + i % 8]) for i, picture in enumerate(PICTURES)]
    return DataFromList([[file, i] for i, file in enumerate(files)])


def test_a_random_crop_is_decoded_into_the_batch(taken: list[bool]) -> None:
    # With ratios so flat, the middle of some is taken after scaling: that takes another way.
    for ratio in ((0.75, 1.333), (9.0, 9.5)):
        crop = DecodeRandomCrop(16, aspect_ratio_range=ratio)
        flow = BatchData(MapDataComponent(jpegs(), crop, rng=True), 6)
        assert all(batch[0].shape == (6, 16, 16, 3) for batch in flow)
        assert taken == [True] * 4
        plain = BatchData(MapDataComponent(jpegs(), lambda x, rng: crop(x, rng), rng=True), 6)  # noqa: B023
        assert same(flow, plain)
        taken.clear()


def test_what_a_subclass_calls_is_what_is_called() -> None:
    class Darker(DecodeRandomCrop):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return super().__call__(*args, **options) // 2

    flow = BatchData(MapDataComponent(jpegs(), Darker(16), rng=True), 6)
    plain = BatchData(MapDataComponent(jpegs(), DecodeRandomCrop(16), rng=True), 6)
    assert same(flow, MapData(plain, lambda dp: [dp[0] // 2, dp[1]]))


def test_a_part_of_an_image_is_copied_once(taken: list[bool]) -> None:
    source = DataFromArrays(PICTURES, PICTURES[..., :1], np.arange(24))
    flow = BatchData(AugmentImageComponents(source, imgaug.RandomCrop(12), (0, 1)), 6)
    list(flow)
    assert taken == [True] * 8
    shared = AugmentImageComponents(source, imgaug.RandomCrop(12), (0, 1), copy=False)
    assert same(flow, BatchData(shared, 6))
    taken.clear()
    list(BatchData(shared, 6))
    assert not any(taken)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    cv2 = pytest.importorskip("cv2")
    files = [tmp_path / f"{i}.png" for i in range(24)]
    for i, file in enumerate(files):
        # Some have the size already that all are to get.
        cv2.imwrite(str(file), PICTURES[i] if i % 5 else PICTURES[i][:10, :12])
    return files


def test_resized_images_lie_in_the_batch(files: list[Path], taken: list[bool]) -> None:
    for channel in (1, 3):
        images = ImageFromFile(files, channel, (10, 12), shuffle=True)
        batches = list(BatchData(images, 6).iterate(seed=1, epoch=0))
        assert taken == [True] * 4 * (1 + channel // 3)
        singles = [dp[0] for dp in images.iterate(seed=1, epoch=0)]
        assert np.array_equal(np.concatenate([batch[0] for batch in batches]), singles)
        assert singles[0].shape == (10, 12, channel) and singles[0].flags.c_contiguous


def test_what_a_cache_keeps_is_no_part_of_a_batch(files: list[Path], taken: list[bool]) -> None:
    cached = CacheData(ImageFromFile(files, 3, (10, 12)))
    for _ in range(2):
        for batch in BatchData(cached, 6):
            batch[0][...] = 7
    assert not any(taken)
    assert same(cached, ImageFromFile(files, 3, (10, 12)))
    # Nor where a function reads it that has rows itself.
    plan, plain = cached.plan(seed=0), ImageFromFile(files, 3, (10, 12)).plan(seed=0)
    owners: list[Any] = []

    def f(dp: Any) -> Any:
        image = plain.get(3)[0]
        owners.append(image.base)
        return image, plan.get(3)[0], empty_row(3, np.int8)

    for batch in BatchData(MapData(ImageFromFile(files), f), 6):
        batch[1][...] = 9
    assert owners == [None] * 24
    assert same(cached, ImageFromFile(files, 3, (10, 12)))
