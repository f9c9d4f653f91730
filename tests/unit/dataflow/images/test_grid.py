"""A grid of pictures: where they are, and what is drawn in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import ConfigError
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.dataflow.images import decode_image, image_grid
from towerpack.dataflow.images._grid import _BACKGROUND as DARK
from towerpack.dataflow.images._grid import displayable

pytest.importorskip("cv2")

COLOURS = [(200, 0, 0), (0, 200, 0), (0, 0, 200), (90, 90, 0), (0, 90, 90)]
IMAGES = np.stack([np.full((20, 20, 3), colour, np.uint8) for colour in COLOURS])


def cells(grid: np.ndarray, cell: int = 16, text: int = 0) -> list[tuple[int, ...]]:
    """The colour in the middle of each cell."""
    return [
        tuple(grid[y, x].tolist())
        for y in range(cell // 2, grid.shape[0], cell + text + 4)
        for x in range(cell // 2, grid.shape[1], cell + 4)
    ]


SOURCES: dict[str, Any] = {
    "array": IMAGES,
    "datapoints": [(img, 1) for img in IMAGES],
    "batch": [(IMAGES, np.arange(5))],
    "batches": BatchData(DataFromArrays(IMAGES), 2, remainder=True),
    "lists": BatchData(DataFromArrays(IMAGES), 2, remainder=True, stack="list"),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_order(source: Any, tmp_path: Path) -> None:
    grid = image_grid(source, tmp_path / "grid.png", rows=3, cols=3, cell=16)
    assert grid.shape == (36, 56, 3)  # two rows are enough
    assert cells(grid) == [*COLOURS, (DARK,) * 3]
    assert np.array_equal(decode_image((tmp_path / "grid.png").read_bytes()), grid)
    small = image_grid(source, rows=1, cols=2, cell=16)
    assert cells(small) == COLOURS[:2]


def test_shapes_and_ranges() -> None:
    white = np.full((5, 5), 255, np.uint8)
    assert (displayable(white) == 255).all() and displayable(white).shape == (5, 5, 3)
    assert (displayable(np.ones((5, 5, 1), np.float32)) == 255).all()
    assert (displayable(np.full((5, 5, 3), 51.0)) == 51).all()
    assert (displayable(np.full((5, 5, 3), 0.2, np.float32)) == 51).all()
    assert displayable(np.array([[-2.0, 0.0, 2.0]]))[0, :, 0].tolist() == [0, 128, 255]
    assert displayable(np.array([[0, np.nan, np.inf]])).shape == (1, 3, 3)
    assert (displayable(np.ones((2, 2), bool)) == 255).all()
    assert displayable(np.uint8([[[1, 2, 3]]]), rgb=False).tolist() == [[[3, 2, 1]]]
    assert displayable(np.zeros((2, 2, 7), np.uint8)).shape == (2, 2, 3)
    wide = image_grid([np.full((10, 40), 200, np.uint8)], cell=40)
    rows = np.flatnonzero(wide[:, 20, 0] == 200)
    assert wide.shape == (40, 40, 3) and rows.tolist() == list(range(15, 25))


def test_what_is_drawn_in() -> None:
    img = np.zeros((50, 100, 3), np.uint8)
    mask = np.zeros((50, 100), np.int64)
    mask[:, 50:] = 3
    boxes, points = np.array([[10, 10, 40, 40]]), np.array([[75.0, 25.0, 2.0]])
    datapoint = {"x": img, "m": mask, "b": boxes, "k": points}
    plain = image_grid([datapoint], image="x", cell=100)
    assert (plain[25:75] == 0).all() and (plain[:25] == DARK).all()
    masked = image_grid([datapoint], image="x", mask="m", cell=100)[25:75]
    assert not masked[:, :50].any() and masked[:, 50:].any(axis=2).all()
    boxed = image_grid([datapoint], image="x", boxes="b", cell=200)[50:150]
    rows, columns = (np.flatnonzero(boxed.any(axis=(i, 2))) for i in (1, 0))
    # 2 pixels wide, about the edge: 20 to 80, in pixels of the cell.
    assert abs(rows[[0, -1]] - [20, 79]).max() <= 1 and abs(columns[[0, -1]] - [20, 79]).max() <= 1
    assert not boxed[24:76, 24:76].any()
    pointed = np.argwhere(image_grid([datapoint], image="x", keypoints="k", cell=100)[25:75].any(2))
    assert np.allclose(pointed.mean(axis=0), [25, 75], atol=1)
    empty = {**datapoint, "b": np.zeros((0, 4)), "k": np.zeros((0, 3))}
    assert np.array_equal(image_grid([empty], image="x", boxes="b", keypoints="k", cell=100), plain)
    outside = {**datapoint, "b": np.array([[-1e300, -9, 1e6, 1e5]]), "k": np.array([[1e6, np.nan]])}
    image_grid([outside], image="x", boxes="b", keypoints="k", cell=100)


def test_labels() -> None:
    def labelled(label: Any, cell: int = 192) -> np.ndarray:
        datapoint = np.zeros((16, 16), np.uint8), label
        return image_grid([datapoint], label=1, names=["cat", "dog", "c", "d"], cell=cell)

    long = labelled("x" * 500, 64)
    assert long.shape == (82, 64, 3) and (long[64:] > 100).any() and (long[64:, -2:] == DARK).all()
    for label, text in (
        (np.int64(1), "dog"),
        (9, "9"),
        (None, "None"),
        ([1, 2], "[1, 2]"),
        (np.array([0.04, 0.3, 0.003, 0.5, 0.157]), "d 0.50, dog 0.30, 4 0.16"),
        (np.float32([0, 1]), "dog 1.00"),
    ):
        assert np.array_equal(labelled(label), labelled(text)), text
    assert not np.array_equal(labelled("Größe"), labelled("Grosse"))


def test_errors() -> None:
    image, no_masks = IMAGES[0], [None, {"x": 1}, np.zeros(20, int), np.full((20, 20), np.nan)]
    not_five = [3, np.array(3), [], np.zeros((2, 20, 20), int), {"a": 1}]
    for source, arguments, words in (
        ([], {}, "no image to show"),
        ([(3, 4)], {}, "must have the shape of an image"),
        ([(image, np.zeros((3, 2)))], {"boxes": 1}, "boxes"),
        ([(image, 1)], {"label": -3}, r"-3 to show as label(.|\n)*expected  0 or 1(.|\n)*--label"),
        ([{"a": image, "b": 3}], {"boxes": "x", "image": "a"}, "'x'(.|\n)*expected  'a' or 'b'"),
        *(
            ([(image, mask)], {"mask": 1}, r"mask must be a label map(.|\n)*mask=")
            for mask in no_masks
        ),
        *(
            ([(IMAGES, v)], {"boxes": 1}, r"each of the 5 images(.|\n)*boxes=\.\.\.")
            for v in not_five
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            image_grid(source, **arguments)


def test_what_is_a_mask() -> None:
    labels = np.arange(100).reshape(10, 10) % 3
    grids = [
        image_grid([(IMAGES[0], mask)], mask=1)
        for mask in (labels, labels[:, :, None], labels.astype(np.float32), labels.tolist())
    ]
    assert all(np.array_equal(grid, grids[0]) for grid in grids)
    assert not np.array_equal(grids[0], image_grid([(IMAGES[0], labels)]))
    some = image_grid([(IMAGES[0], labels > 0)], mask=1)
    assert np.array_equal(some, image_grid([(IMAGES[0], (labels > 0) * 1)], mask=1))
