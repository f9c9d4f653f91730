"""MNIST and Fashion-MNIST."""

from __future__ import annotations

from towerpack._core.errors import ConfigError
from towerpack.apps.classification._image_inputter import Found, ImageInputter, Pictures
from towerpack.dataflow.datasets import FashionMnist, Mnist

_KINDS: dict[str, type[Mnist]] = {"mnist": Mnist, "fashion_mnist": FashionMnist}


class MnistInputter(ImageInputter):
    """`datasets.Mnist`; with `inputter: fashion_mnist`, `datasets.FashionMnist`.

    `path` is the folder of the four IDX files, gzipped or not, or where they are downloaded to.
    Other data in files of the same names and shapes need `class_names`.
    """

    takes = frozenset({"path", "validation", "class_names"})

    def find(self) -> Found:
        """The training and test data of the data set."""
        kind = _KINDS.get(self.config.inputter, Mnist)
        raw = {s: kind(s, shuffle=False, dir=self.config.path) for s in ("train", "test")}
        parts = {s: Pictures(ds.images, ds.labels) for s, ds in raw.items()}
        found = raw["train"].get_label_names()
        names = self.config.class_names or found
        if len(names) != len(found):
            raise ConfigError(
                f"data.class_names names {len(names)} classes.", expected=f"{len(found)}"
            )
        return names, parts


build = MnistInputter
