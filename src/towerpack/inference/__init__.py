"""What comes after training: predictors."""

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.inference")

from towerpack.inference._predictor import Predictor as Predictor
