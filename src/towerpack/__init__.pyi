# Written by `make public-names` from the table in __init__.py.
from towerpack._core.errors import (
    BatchError as BatchError,
    CallbackError as CallbackError,
    CheckpointError as CheckpointError,
    CheckpointMismatchError as CheckpointMismatchError,
    ConfigError as ConfigError,
    DataFlowError as DataFlowError,
    InternalError as InternalError,
    LayerError as LayerError,
    MapError as MapError,
    MissingExtraError as MissingExtraError,
    NumericsError as NumericsError,
    SpecError as SpecError,
    StateError as StateError,
    TowerpackError as TowerpackError,
)

__version__: str
