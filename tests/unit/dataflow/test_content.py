"""The identity of a pipeline, by which a cache on disk is recognized, contains every argument."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from every_flow import public_flows, write_files
from towerpack import dataflow as df
from towerpack.dataflow import formats, images
from towerpack.dataflow._compile import ParallelStage, Stage
from towerpack.dataflow.content import content_of, functions_of
from towerpack.dataflow.formats import DiskCacheData


def parameters_of(cls: Any) -> dict[str, inspect.Parameter]:
    """Of the constructor; for a class Python 3.11.2 gives those of an inherited `__new__`."""
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])


def one(datapoint: Any, *rest: Any) -> Any:
    return datapoint


def two(datapoint: Any, *rest: Any) -> Any:
    return datapoint


ROWS = df.DataFromArrays(np.arange(12), np.arange(12.0))
BATCHES = df.BatchData(ROWS, 4)
SKIPPING = {"on_error": "skip"}
# Of every argument of a stage two values; and what else has to be given with them.
VALUES: dict[str, tuple[Any, Any]] = {
    "augmentors": ([images.Brightness(3)], [images.Brightness(4)]),
    "batch_size": (2, 3),
    "batched": (False, True),
    "boundaries": ([3], [4]),
    "boxes": ((), (1,)),
    "buffer_size": (3, 4),
    "catch_exceptions": (False, True),
    "coords_index": ((), (1,)),
    "copy": (True, False),
    "decoder": (one, two),
    "df_lists": ([ROWS], [ROWS, ROWS]),
    "f": (one, two),
    "flows": ([ROWS], [ROWS, ROWS]),
    "idx": (0, 1),
    "idxs": ([0], [1]),
    "img_index": (0, 2),
    "index": (0, 1),
    "keep_state": (True, False),
    "keypoints": ((), (1,)),
    "labels": (2, None),
    "length": (one, two),
    "lengths": (None, np.arange(12)),
    "masks": ((), (1,)),
    "long": ("error", "split"),
    "max_errors": (3, 4),
    "max_tokens": (8, 9),
    "max_waiting": (3, 4),
    "min_visible": (0.1, 0.2),
    "n": (2, 3),
    "num_reuse": (1, 2),
    "num_shards": (3, 4),
    "on_error": ("raise", "skip"),
    "origins": ([0], [1]),
    "pad": (0, 1),
    "pad_to_boundary": (False, True),
    "predicate": (one, two),
    "remainder": (True, False),
    "replacement": (True, False),
    "rng": (False, True),
    "seed": (1, 2),
    "shape": (64, 32),
    "shuffle": (False, True),
    "size": (2, 3),
    "stack": ("array", "list"),
    "stop": ("first", "all"),
    "strict": (False, True),
    "tail": ("drop", "uneven"),
    "version": ("", "2"),
    "weights": (None, [2]),
    "window": (2, 3),
}
ALONE = {"max_tokens": {"batch_size": None, "boundaries": [5]}}
WITH: dict[str, dict[str, Any]] = {
    "max_errors": SKIPPING,
    "shuffle": {"lengths": np.arange(12)},
    "length": {"lengths": None},
    "labels": {"weights": "balanced"},
}
OF_CLASS: dict[tuple[str, str], tuple[Any, Any]] = {
    ("AugmentImageComponent", "index"): (0, 1),
    ("AugmentImageComponents", "index"): ((0,), (2,)),
    ("AugmentImageCoordinates", "coords_index"): (1, 3),
    ("Mosaic", "boxes"): (1, None),
    ("Mosaic", "image"): (0, 3),
    ("PackSequences", "length"): (8, 9),
    ("WeightedData", "labels"): (np.arange(12) % 2, np.arange(12) % 3),
    ("WeightedData", "weights"): (np.arange(12), np.ones(12)),
}


def stages() -> dict[str, type[Stage]]:
    """Every public stage that may change datapoints."""
    return {
        cls.__name__: cls
        for cls in public_flows()
        if issubclass(cls, Stage)
        and not issubclass(cls, ParallelStage)
        and not cls.transparent
        and {"ds", "flows", "df_lists", "lmdb_data"} & parameters_of(cls).keys()
    }


CASES = [
    (name, argument)
    for name, cls in stages().items()
    for argument in parameters_of(cls)
    if argument not in ("ds", "lmdb_data", *cls.without_effect)
]


def pair_of(name: str, argument: str) -> tuple[Any, Any]:
    return OF_CLASS.get((name, argument)) or VALUES[argument]


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_each_argument_of_each_stage(name: str, argument: str, tmp_path: Path) -> None:
    cls = stages()[name]
    parameters = parameters_of(cls)
    given = {
        other: pair_of(name, other)[0]
        for other, parameter in parameters.items()
        if parameter.default is parameter.empty and other not in ("ds", "lmdb_data", "path")
    }
    if name == "BatchByLength":
        given |= {"batch_size": 2, "boundaries": [20]}
    if name == "AugmentImageComponents":
        given["index"] = (0,)
    if name == "AugmentImageCoordinates":
        given["coords_index"] = 3
    if name == "DiskCacheData":
        given["path"] = tmp_path
    for ds in ("ds", "lmdb_data"):
        if ds in parameters:
            given[ds] = BATCHES if name == "ShardRows" else ROWS
    more = {k: v for k, v in WITH.get(argument, {}).items() if k in parameters}
    given |= more | ALONE.get(argument, {})
    flows = [cls(**{**given, argument: value}) for value in pair_of(name, argument)]
    first, second = map(content_of, flows)
    assert first != second
    assert content_of(cls(**{**given, argument: pair_of(name, argument)[0]})) == first
    assert content_of(cloudpickle.loads(cloudpickle.dumps(flows[0]))) == first


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (images.MixUp(1.0, 4), images.MixUp(0.5, 4)),
        (images.MixUp(1.0, 4), images.MixUp(1.0, 4, prob=0.5)),
        (images.CutMix(1.0, 4), images.CutMix(1.0, 5)),
    ],
)
def test_arguments_of_maps_of_the_library(first: Any, second: Any) -> None:
    contents = [content_of(df.MapData(BATCHES, f, rng=True)) for f in (first, second)]
    assert len(set(contents)) == 2


def test_arguments_within_augmentors() -> None:
    def described(*augmentors: Any) -> str:
        return content_of(df.AugmentImageComponent(ROWS, augmentors))

    def chosen(brightness: float) -> Any:
        return images.RandomApplyAug(images.AugmentorList([images.Brightness(brightness)]), 0.5)

    assert described(chosen(3)) == described(chosen(3)) != described(chosen(4))
    assert described(images.Flip(horiz=True)) != described(images.Flip(vert=True))


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def up(self, datapoint: Any) -> Any:
        return [x * self.factor for x in datapoint]

    def down(self, datapoint: Any) -> Any:
        return [x // self.factor for x in datapoint]


def test_bound_methods_differ_by_their_object_and_by_their_code() -> None:
    functions = Scale(2).up, Scale(3).up, Scale(2).down, [2].count, [3].count, [2].index
    checksums = [functions_of(df.MapData(ROWS, function)) for function in functions]
    assert len(set(checksums)) == len(functions)
    assert functions_of(df.MapData(ROWS, Scale(2).up)) == checksums[0]


def test_what_only_changes_the_speed_does_not_count(tmp_path: Path) -> None:
    list(DiskCacheData(df.PrintData(df.PrefetchData(ROWS, num_proc=0), 0), tmp_path))
    list(DiskCacheData(df.PrefetchData(df.PrintData(ROWS, 0, "name"), 3, 0), tmp_path))


# Of sources whose content is not in memory: every argument but the place of the files.
SOURCES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "HDF5Data": (df.HDF5Data, {"data_paths": ["x"]}, {"data_paths": ["y"], "shuffle": False}),
    "NumpyData": (df.NumpyData, {}, {"names": ["x"]}),
    "ParquetData": (df.ParquetData, {}, {"columns": ["i"]}),
    "SVMLightData": (df.SVMLightData, {}, {"dtype": "f8", "num_features": 9, "shuffle": False}),
    "TarData": (df.TarData, {}, {"decode": True}),
    "LMDBData": (formats.LMDBData, {}, {"keys": "%08d", "shuffle": False}),
    "CaffeLMDB": (formats.CaffeLMDB, {}, {"keys": "%08d", "shuffle": False, "on_error": "skip"}),
    "TFRecordData": (formats.TFRecordData, {}, {"features": {}}),
}
FILES = {"HDF5Data": "a.h5", "NumpyData": "a.npz", "ParquetData": "a.parquet"} | {
    "SVMLightData": "a.svm",
    "TarData": "a.tar",
    "LMDBData": "a.lmdb",
    "CaffeLMDB": "caffe.lmdb",
    "TFRecordData": "a.tfrecord",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    write_files(made)
    return made


@pytest.mark.parametrize("name", SOURCES)
def test_each_argument_of_sources_over_files(name: str, folder: Path) -> None:
    make, given, others = SOURCES[name]
    path = folder / FILES[name]
    contents = [content_of(make(path, **given))]
    contents += [content_of(make(path, **given | {key: other})) for key, other in others.items()]
    if "shuffle" in others:
        contents += [content_of(make(path, **given, shuffle=True, seed=seed)) for seed in (1, 2)]
    assert len(set(contents)) == len(contents)


def test_arguments_of_sources_in_memory() -> None:
    flows = [
        df.DataFromGenerator(one),
        df.DataFromGenerator(two),
        df.DataFromGenerator(one, rng=True),
        df.DataFromIterable(range(3)),
        df.DataFromIterable(range(4)),
        df.DataFromIterable([1, 2, 4]),
    ]
    assert len(set(map(content_of, flows))) == len(flows)
