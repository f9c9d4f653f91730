"""What the contenders of `data_loading.py` load: data on disk, and one function of an index.

All Python contenders call the same `load(index)` or `load_batch(indices)`, whose randomness is a
function of the index, so that the sum of all pixels of an epoch must be the same for all.
"""

from __future__ import annotations

import importlib.util
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 224
_PHOTOS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)


class Workload(ABC):
    """Items 0..n-1, each a tuple of arrays.

    Attributes:
        n: Items in an epoch.
        batch_size: Items in a batch.
    """

    n: int
    batch_size: int

    @abstractmethod
    def load(self, index: int) -> tuple[np.ndarray, ...]:
        """One item."""

    @abstractmethod
    def load_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        """A batch, made as well as one can by hand."""

    def order(self, epoch: int) -> Iterator[np.ndarray]:
        """Index batches of an epoch, shuffled, for contenders that have no shuffle of their own."""
        order = np.random.default_rng(epoch).permutation(self.n)
        return iter(np.split(order, range(self.batch_size, self.n, self.batch_size)))


class Photos(Workload):
    """JPEG files of 500×375, random resized crop to 224, flip.

    Attributes:
        parts_only: Decode them as Towerpack can: not the rows below the crop.
    """

    n = 6400
    batch_size = 64
    parts_only = False

    def __init__(self, directory: Path, *, quick: bool = False) -> None:
        self.paths = [str(p) for p in sorted((directory / "photos").glob("*.jpg"))]
        self.n = 256 if quick else self.n

    def path(self, index: int) -> str:
        """The file of an item; there are fewer files than items."""
        return self.paths[index % len(self.paths)]

    def load(self, index: int) -> tuple[np.ndarray, ...]:
        return (self._load(index, None),)

    def load_into(self, index: int, row: np.ndarray) -> None:
        """Write one item into memory that is there already."""
        self._load(index, row)

    def load_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        batch = np.empty((len(indices), SIZE, SIZE, 3), np.uint8)
        for row, index in zip(batch, indices, strict=True):
            self._load(int(index), row)
        return (batch,)

    def _load(self, index: int, out: np.ndarray | None) -> np.ndarray:
        import cv2

        cv2.setNumThreads(0)
        decode = _decoded_part if self.parts_only else _decoded
        with open(self.path(index), "rb") as file:
            part, flip = decode(file.read(), index)
        if not flip:
            return cv2.resize(part, (SIZE, SIZE), dst=out, interpolation=cv2.INTER_LINEAR)
        # (A view with negative strides, which OpenCV must copy, would take ten times as long.)
        scaled = cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        return cv2.flip(scaled, 1, dst=out)


def _decoded(data: bytes, index: int) -> tuple[np.ndarray, bool]:
    import simplejpeg

    image = simplejpeg.decode_jpeg(data)
    x, y, width, height, flip = crop_of(index, image.shape[1], image.shape[0])
    return image[y : y + height, x : x + width], flip


def _decoded_part(data: bytes, index: int) -> tuple[np.ndarray, bool]:
    """The same pixels, without decoding the rows below them."""
    from towerpack.dataflow.images import decode_image, image_header

    header = image_header(data)
    x, y, width, height, flip = crop_of(index, header.width, header.height)
    return decode_image(data, part=(y, x, height, width), strict=False), flip


def crop_of(index: int, width: int, height: int) -> tuple[int, int, int, int, bool]:
    """A random resized crop (8–100 % of the area, aspect 3/4–4/3) as a function of the index."""
    rng = np.random.Generator(np.random.Philox(key=index))
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return x, y, w, h, bool(rng.random() < 0.5)
    return 0, 0, width, height, False


class Mapped(Workload):
    """Decoded images in a memory map; nothing is done to them."""

    n = 8192
    batch_size = 64

    def __init__(self, directory: Path, *, quick: bool = False) -> None:
        self.file = str(directory / "images.npy")
        self.n = 512 if quick else self.n
        self._images: Any = None

    @property
    def images(self) -> np.ndarray:
        """The memory map, opened in each process."""
        if self._images is None:
            self._images = np.load(self.file, mmap_mode="r")[: self.n]
        return self._images

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_images": None}

    def load(self, index: int) -> tuple[np.ndarray, ...]:
        return (np.array(self.images[index]),)

    def load_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        return (self.images[indices],)


class Tiny(Workload):
    """A million records of 1 kB in a memory map; a Python function takes each apart."""

    n = 1_000_000
    batch_size = 256
    taken = 102_400  # of the million, in an epoch

    def __init__(self, directory: Path, *, quick: bool = False) -> None:
        self.file = str(directory / "records.npy")
        self.n = 5120 if quick else self.taken
        self._records: Any = None

    @property
    def records(self) -> np.ndarray:
        """The memory map, opened in each process."""
        if self._records is None:
            self._records = np.load(self.file, mmap_mode="r")
        return self._records

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": None}

    def load(self, index: int) -> tuple[np.ndarray, ...]:
        return parse(self.records[index])

    def load_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        items = [parse(record) for record in self.records[indices]]
        return tuple(np.stack(column) for column in zip(*items, strict=True))


def parse(record: np.ndarray) -> tuple[np.ndarray, ...]:
    """Header and body of a record."""
    return record[4:] ^ record[0], record[:4].view(np.int32)[0]


class Holding(Workload):
    """A function in pure Python that takes 1 ms and holds the GIL."""

    n = 2048
    batch_size = 32

    def __init__(self, directory: Path, *, quick: bool = False) -> None:
        self.n = 128 if quick else self.n
        self.loops = int((directory / "loops.txt").read_text())

    def load(self, index: int) -> tuple[np.ndarray, ...]:
        return (np.int64(spin(index, self.loops)),)

    def load_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.array([spin(int(index), self.loops) for index in indices]),)


def spin(start: int, loops: int) -> int:
    """Keep the interpreter busy."""
    value = start
    for i in range(loops):
        value = (value * 31 + i) & 0xFFFFFF
    return value


class Memory(Workload):
    """CIFAR-sized images in memory: shuffle, flip, to float32, batch; no workers."""

    n = 50_000
    batch_size = 128

    def __init__(self, directory: Path, *, quick: bool = False) -> None:
        rng = np.random.default_rng(0)
        self.n = 1280 if quick else self.n
        self.images = rng.integers(0, 256, (self.n, 32, 32, 3), np.uint8)
        self.labels = rng.integers(0, 10, self.n)

    def load(self, index: int) -> tuple[np.ndarray, ...]:
        import cv2

        image = self.images[index]
        if np.random.random() < 0.5:
            image = cv2.flip(image, 1)  # NumPy would copy a mirrored view, pixel by pixel
        return image.astype(np.float32) / np.float32(255), self.labels[index]

    def load_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        return flip_and_scale(self.images[indices], np.random.random(len(indices)) < 0.5), (
            self.labels[indices]
        )


def flip_and_scale(images: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The augmentation of `Memory`, vectorised."""
    import cv2

    if chosen.any():
        rows = images[chosen].reshape(-1, *images.shape[2:])
        images[chosen] = cv2.flip(rows, 1).reshape(-1, *images.shape[1:])
    return np.multiply(images, np.float32(1 / 255), dtype=np.float32)


WORKLOADS: dict[str, type[Any]] = {
    "photos": Photos,
    "mapped": Mapped,
    "tiny": Tiny,
    "holding": Holding,
    "memory": Memory,
}


def write_data(directory: Path, *, quick: bool = False) -> None:
    """Write what the workloads read; what is there already stays."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_photos(directory / "photos", 64 if quick else 1024)
    _write_array(directory / "images.npy", (512 if quick else Mapped.n, SIZE, SIZE, 3))
    _write_array(directory / "records.npy", (5120 if quick else Tiny.n, 1024))
    loops = directory / "loops.txt"
    if not loops.exists():
        loops.write_text(str(_loops_of(1e-3)))


def _write_photos(directory: Path, count: int) -> None:
    """Cut 500×375 windows out of real photographs, vary them a little, and encode them."""
    import cv2

    if directory.exists() and len(list(directory.iterdir())) >= count:
        return
    directory.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    photos = _photos()
    for index in range(count):
        photo = photos[index % len(photos)]
        height, width = photo.shape[:2]
        scale = rng.uniform(max(500 / width, 375 / height), max(500 / width, 375 / height) * 1.5)
        photo = cv2.resize(photo, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        x = int(rng.integers(max(1, photo.shape[1] - 499)))
        y = int(rng.integers(max(1, photo.shape[0] - 374)))
        window = cv2.convertScaleAbs(
            photo[y : y + 375, x : x + 500], alpha=rng.uniform(0.8, 1.2), beta=rng.uniform(-15, 15)
        )
        window = cv2.resize(window, (500, 375))[:, :: rng.choice([-1, 1])]
        quality = [cv2.IMWRITE_JPEG_QUALITY, 90]
        cv2.imwrite(str(directory / f"{index:05d}.jpg"), window, quality)


def _photos() -> list[np.ndarray]:
    """Those that scikit-learn brings, and of scikit-image, where it is installed."""
    import cv2
    import sklearn.datasets

    photos = [image[..., ::-1].copy() for image in sklearn.datasets.load_sample_images().images]
    found = importlib.util.find_spec("skimage")
    if found is not None and found.origin is not None:
        bundled = Path(found.origin).parent / "data"
        photos += [cv2.imread(str(bundled / name), cv2.IMREAD_COLOR) for name in _PHOTOS]
    return photos


def _write_array(path: Path, shape: tuple[int, ...]) -> None:
    if path.exists() and np.load(path, mmap_mode="r").shape == shape:
        return
    array = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    rng = np.random.default_rng(1)
    step = max(1, (64 << 20) // array[0].nbytes)
    for start in range(0, len(array), step):
        part = array[start : start + step]
        part[:] = rng.integers(0, 256, part.shape, np.uint8)
    array.flush()


def _loops_of(seconds: float) -> int:
    """How many turns of `spin` take so long on this machine."""
    best = min(_timed(100_000) for _ in range(5))
    return max(1, round(seconds / best * 100_000))


def _timed(loops: int) -> float:
    start = time.perf_counter()
    spin(1, loops)
    return time.perf_counter() - start
