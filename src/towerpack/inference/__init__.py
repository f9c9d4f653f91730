"""Prediction with trained models, and export of models to other formats."""

from towerpack._core.extras import require
from towerpack._core.old_arguments import accept as _accept

require("tensorflow", extra="tf", needed_for="towerpack.inference")

from towerpack._core.errors import ExportError as ExportError
from towerpack.inference._batching import BatchingPredictor as BatchingPredictor
from towerpack.inference._comparison import compare_exported as compare_exported
from towerpack.inference._dataset_predictor import DatasetPredictor as DatasetPredictor
from towerpack.inference._export import export as export
from towerpack.inference._predict_config import OfflinePredictor as OfflinePredictor
from towerpack.inference._predict_config import PredictConfig as PredictConfig
from towerpack.inference._runtimes import installed_runtimes as installed_runtimes
from towerpack.inference._runtimes import load_exported as load_exported
from towerpack.inference.exported import ExportedModel as ExportedModel
from towerpack.inference.exported import Signature as Signature
from towerpack.inference.exported import TensorInfo as TensorInfo
from towerpack.inference.predictor import Predictor as Predictor

_accept(*list(globals().values()))
