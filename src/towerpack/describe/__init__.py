"""Summary tables and diagrams of models."""

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.describe")

from towerpack.describe._summary import LayerSummary as LayerSummary
from towerpack.describe._summary import ModelSummary as ModelSummary
from towerpack.describe._summary import is_model as is_model
from towerpack.describe._summary import model_summary as model_summary
