"""Towerpack: data flows, named layers, towers, trainers and callbacks for TensorFlow.

    import towerpack as tp

The names below are loaded when they are first used, so `import towerpack` stays cheap and loads no
framework. `from towerpack import *` asks for all of them, and so loads TensorFlow.
"""

from __future__ import annotations

from towerpack._core.lazy import lazy

__version__ = "0.1.0"

# Where each public name lives. `make public-names` writes what follows from this table: the types
# in `__init__.pyi` and the list that a test pins.
_NAMES: dict[str, list[str]] = {
    "towerpack._core.errors": [
        "BatchError",
        "CallbackError",
        "CheckpointError",
        "CheckpointMismatchError",
        "ConfigError",
        "DataFlowError",
        "FormatError",
        "InternalError",
        "LayerError",
        "MapError",
        "MissingExtraError",
        "NumericsError",
        "SpecError",
        "StateError",
        "TowerpackError",
        "WorkerError",
    ],
    "towerpack.callbacks": [
        "BestSaver",
        "BinaryClassificationStats",
        "Callback",
        "Callbacks",
        "CheckNumerics",
        "ClassificationError",
        "EarlyStopping",
        "HumanHyperParamSetter",
        "HyperParamSetterWithFunc",
        "InferenceRunner",
        "Inferencer",
        "MaxSaver",
        "MinSaver",
        "ModelSaver",
        "PeriodicTrigger",
        "ProgressBar",
        "ScalarStats",
        "ScheduledHyperParamSetter",
        "StatMonitorParamSetter",
    ],
    "towerpack.callbacks.monitors": [
        "ConsoleMonitor",
        "JSONLMonitor",
        "Monitor",
        "Monitors",
        "TensorBoardMonitor",
    ],
    "towerpack.checkpoint": [
        "list_checkpoints",
        "load_checkpoint",
    ],
    "towerpack.dataflow": [
        "BatchData",
        "CacheData",
        "ConcatData",
        "DataFlow",
        "DataFromArrays",
        "DataFromGenerator",
        "DataFromIterable",
        "DataFromList",
        "FakeData",
        "FixedSizeData",
        "JoinData",
        "LocallyShuffleData",
        "MapData",
        "MapDataComponent",
        "PrintData",
        "ProxyDataFlow",
        "RNGDataFlow",
        "RepeatedData",
        "SelectComponent",
        "ShuffleData",
        "TestDataSpeed",
    ],
    "towerpack.inference": [
        "Predictor",
    ],
    "towerpack.inputs": [
        "DummyConstantInput",
        "FeedInput",
        "InputSource",
        "QueueInput",
        "TensorInput",
    ],
    "towerpack.model": [
        "ModelDesc",
        "PlainModel",
    ],
    "towerpack.nn": [
        "AvgPooling",
        "BatchNorm",
        "Conv2D",
        "Conv2DTranspose",
        "Deconv2D",
        "Dropout",
        "FullyConnected",
        "GlobalAvgPooling",
        "LeakyReLU",
        "LinearWrap",
        "MaxPooling",
        "ReLU",
        "Sigmoid",
        "Tanh",
        "argscope",
        "expose",
        "l1_regularizer",
        "l2_regularizer",
        "register_layer",
        "regularize_cost",
        "reuse_scope",
        "scope",
        "summary",
    ],
    "towerpack.tower": [
        "TowerContext",
        "TowerFunction",
        "get_current_tower_context",
    ],
    "towerpack.training": [
        "ObjAttrParam",
        "SimpleTrainer",
        "StopTraining",
        "SyncMultiGPUTrainer",
        "TrainConfig",
        "Trainer",
    ],
}
# Packages and modules that are public as a whole: `tp.dataflow`.
_MODULES: list[str] = ["callbacks", "dataflow", "inputs", "nn", "training"]

# The version is no part of the table.
__getattr__, __dir__, _everyday = lazy(__name__, _NAMES, _MODULES)
__all__ = ["__version__", *_everyday]  # pyright: ignore[reportUnsupportedDunderAll]
