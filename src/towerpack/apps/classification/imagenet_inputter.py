"""The classes of ImageNet without its pictures: for a network that others have trained on them."""

from __future__ import annotations

from towerpack.apps.classification._data_config import DataConfig
from towerpack.apps.classification._image_inputter import Found, ImageInputter
from towerpack.apps.classification.augmenters import Augmenter
from towerpack.zoo.imagenet import class_names


class ImagenetClassesInputter(ImageInputter):
    """Knows 1,000 classes and reads a user's pictures."""

    def find(self) -> Found:
        """No data."""
        return class_names(), {}


def build(config: DataConfig, augmenter: Augmenter) -> ImagenetClassesInputter:
    """The inputter."""
    return ImagenetClassesInputter(config, augmenter)
