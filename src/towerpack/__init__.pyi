# Written by `make public-names` from the table in __init__.py.
from towerpack import callbacks as callbacks
from towerpack import dataflow as dataflow
from towerpack import inputs as inputs
from towerpack import nn as nn
from towerpack import training as training
from towerpack._core.errors import (
    BatchError as BatchError,
    CallbackError as CallbackError,
    CheckpointError as CheckpointError,
    CheckpointMismatchError as CheckpointMismatchError,
    ConfigError as ConfigError,
    DataFlowError as DataFlowError,
    FormatError as FormatError,
    InternalError as InternalError,
    LayerError as LayerError,
    MapError as MapError,
    MissingExtraError as MissingExtraError,
    NumericsError as NumericsError,
    SpecError as SpecError,
    StateError as StateError,
    TowerpackError as TowerpackError,
    WorkerError as WorkerError,
)
from towerpack.callbacks import (
    BestSaver as BestSaver,
    BinaryClassificationStats as BinaryClassificationStats,
    Callback as Callback,
    Callbacks as Callbacks,
    CheckNumerics as CheckNumerics,
    ClassificationError as ClassificationError,
    EarlyStopping as EarlyStopping,
    HumanHyperParamSetter as HumanHyperParamSetter,
    HyperParamSetterWithFunc as HyperParamSetterWithFunc,
    InferenceRunner as InferenceRunner,
    Inferencer as Inferencer,
    MaxSaver as MaxSaver,
    MinSaver as MinSaver,
    ModelSaver as ModelSaver,
    PeriodicTrigger as PeriodicTrigger,
    ProgressBar as ProgressBar,
    ScalarStats as ScalarStats,
    ScheduledHyperParamSetter as ScheduledHyperParamSetter,
    StatMonitorParamSetter as StatMonitorParamSetter,
)
from towerpack.callbacks.monitors import (
    ConsoleMonitor as ConsoleMonitor,
    JSONLMonitor as JSONLMonitor,
    Monitor as Monitor,
    Monitors as Monitors,
    TensorBoardMonitor as TensorBoardMonitor,
)
from towerpack.checkpoint import (
    list_checkpoints as list_checkpoints,
    load_checkpoint as load_checkpoint,
)
from towerpack.dataflow import (
    BatchData as BatchData,
    CacheData as CacheData,
    ConcatData as ConcatData,
    DataFlow as DataFlow,
    DataFromArrays as DataFromArrays,
    DataFromGenerator as DataFromGenerator,
    DataFromIterable as DataFromIterable,
    DataFromList as DataFromList,
    FakeData as FakeData,
    FixedSizeData as FixedSizeData,
    JoinData as JoinData,
    LocallyShuffleData as LocallyShuffleData,
    MapData as MapData,
    MapDataComponent as MapDataComponent,
    PrintData as PrintData,
    ProxyDataFlow as ProxyDataFlow,
    RNGDataFlow as RNGDataFlow,
    RepeatedData as RepeatedData,
    SelectComponent as SelectComponent,
    ShuffleData as ShuffleData,
    TestDataSpeed as TestDataSpeed,
)
from towerpack.inference import (
    Predictor as Predictor,
)
from towerpack.inputs import (
    DummyConstantInput as DummyConstantInput,
    FeedInput as FeedInput,
    InputSource as InputSource,
    QueueInput as QueueInput,
    TensorInput as TensorInput,
)
from towerpack.model import (
    ModelDesc as ModelDesc,
    PlainModel as PlainModel,
)
from towerpack.nn import (
    AvgPooling as AvgPooling,
    BatchNorm as BatchNorm,
    Conv2D as Conv2D,
    Conv2DTranspose as Conv2DTranspose,
    Deconv2D as Deconv2D,
    Dropout as Dropout,
    FullyConnected as FullyConnected,
    GlobalAvgPooling as GlobalAvgPooling,
    LeakyReLU as LeakyReLU,
    LinearWrap as LinearWrap,
    MaxPooling as MaxPooling,
    ReLU as ReLU,
    Sigmoid as Sigmoid,
    Tanh as Tanh,
    argscope as argscope,
    expose as expose,
    l1_regularizer as l1_regularizer,
    l2_regularizer as l2_regularizer,
    register_layer as register_layer,
    regularize_cost as regularize_cost,
    reuse_scope as reuse_scope,
    scope as scope,
    summary as summary,
)
from towerpack.tower import (
    TowerContext as TowerContext,
    TowerFunction as TowerFunction,
    get_current_tower_context as get_current_tower_context,
)
from towerpack.training import (
    ObjAttrParam as ObjAttrParam,
    SimpleTrainer as SimpleTrainer,
    StopTraining as StopTraining,
    SyncMultiGPUTrainer as SyncMultiGPUTrainer,
    TrainConfig as TrainConfig,
    Trainer as Trainer,
)

__version__: str
