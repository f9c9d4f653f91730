"""Argument names of Tensorpack. Each is renamed, or rejected with advice."""

import functools
import inspect
from typing import Any, Final

from towerpack._core.errors import ConfigError

# Classes | old names of arguments | new name or fix
_TABLE: Final = """
Albumentations | augmentor | transform
AsyncMultiGPUTrainer SyncMultiGPUTrainer DataParallelInferenceRunner | gpus | devices
SyncMultiGPUTrainerParameterServer | gpus | devices
SyncMultiGPUTrainerParameterServer | ps_device | leave it out: TensorFlow places the variables
SyncMultiGPUTrainer | average mode | leave it out: gradients are averaged
BatchData | use_list | write stack="list"
BinaryClassificationStats | pred_tensor_name | prediction
BinaryClassificationStats | label_tensor_name | label
Callbacks | cbs | callbacks
CaffeLMDB LMDBData | lmdb_path | path
HDF5Data SVMLightData | filename | path
CheckNumerics | run_as_trigger run_step | leave it out: every step is checked
ClassificationError | wrong_tensor_name | wrong
ClassificationError | summary_name | name
ConcatData JoinData | df_lists | flows
InferenceRunner DataParallelInferenceRunner | input | dataflow
InferenceRunner DataParallelInferenceRunner | infs | inferencers
InferenceRunner DataParallelInferenceRunner | tower_name | leave it out; prefix= names the results
InferenceRunner DataParallelInferenceRunner | tower_func | leave it out: the model is evaluated
InferenceRunner | device | write DataParallelInferenceRunner(…, devices=[0])
DumpTensorAsImage | tensor_name | name
DumpTensorAsImage | prefix | leave it out: files are named after the tensor
DumpTensorAsImage | scale | write map_func=lambda image: image * 255
FeedInput QueueInput | ds | dataflow
QueueInput | queue | write queue_size=50: QueueInput makes the queue itself
GPUMemoryTracker | devices | leave it out: all GPUs are tracked
GraphProfiler | dump_metadata dump_tracing dump_event | write GraphProfiler(first=10, steps=5)
HumanHyperParamSetter | file_name | file
KerasModel | get_model input_signature target_signature input trainer | write KerasModel(model)
MapData MapDataComponent | func | f
MaxSaver MinSaver | monitor_stat | name
MinSaver | reverse | write MaxSaver(name)
MaxSaver MinSaver ModelSaver | filename checkpoint_dir | leave it out: the run directory has them
ModelSaver | max_to_keep | keep
ModelSaver | keep_checkpoint_every_n_hours | write keep=N for the number of checkpoints
ModelSaver | var_collections | leave it out: all variables are saved
ObjAttrParam | attrname | attr
ObjAttrParam | readable_name | leave it out: the attribute's name is used
PeriodicTrigger | triggerable | callback
PostProcess VariableAssignment ProxyOptimizer | opt | optimizer
PostProcess | colocate | leave it out; regex= chooses variables by name
PredictConfig TrainConfig | session_creator session_config | leave it out: there are no sessions
PredictConfig | return_input create_graph | leave it out: a predictor returns its outputs
TrainConfig | starting_epoch | leave it out: a resumed run knows its epoch
ProxyCallback | cb | callback
ProxyOptimizer | name | leave it out: optimizers need no name
RepeatedData RepeatedDataPoint | num | n
SimpleMovingAverage | tensors | names
SmartInit | obj | source
StatMonitorParamSetter | stat_name | stat
SummaryGradient | collections | leave it out: summaries go to the monitors
TensorInput | get_tensor_fn | get_tensors
WarpAffineTransform | borderMode | border
WarpAffineTransform | borderValue | border_value
"""
ARGUMENTS: Final[dict[str, dict[str, str]]] = {}
for _line in _TABLE.strip().splitlines():
    _classes, _old, _new = _line.split(" | ")
    for _class in _classes.split():
        ARGUMENTS.setdefault(_class, {}).update(dict.fromkeys(_old.split(), _new))
_waiting = set(ARGUMENTS)


def accept(*values: Any) -> None:
    """Let classes accept their old argument names from Tensorpack. Ignore all other values."""
    for cls in values:
        own_class = isinstance(cls, type) and cls.__module__.startswith("towerpack.")
        if own_class and cls.__name__ in _waiting:
            _waiting.remove(cls.__name__)
            _wrap_constructor(cls, cls.__init__, ARGUMENTS[cls.__name__])


def _wrap_constructor(cls: Any, construct: Any, new_names: dict[str, str]) -> None:
    # For the class, Python 3.11.2 returns the signature of an inherited `__new__`.
    parameters = list(inspect.signature(construct).parameters.values())[1:]
    most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > most:
            advice = [f"for {k}=, {v}" for k, v in new_names.items() if not v.isidentifier()]
            raise TypeError(
                f"{cls.__name__} takes at most {most} positional arguments, got {len(args)}: "
                + "; ".join(["pass the others by name", *advice])
            )
        for old in new_names.keys() & kwargs.keys():
            new = new_names[old]
            if not new.isidentifier():
                raise ConfigError(f"{cls.__name__} has no argument '{old}'.", fix=new)
            if new in kwargs:
                raise ConfigError(
                    f"{cls.__name__} got both '{old}' and its new name '{new}'.",
                    fix=f"pass only {new}=",
                )
            kwargs[new] = kwargs.pop(old)
        construct(self, *args, **kwargs)

    cls.__init__ = init
