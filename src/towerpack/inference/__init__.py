"""What comes after training: predictors."""

from towerpack.inference._predictor import Predictor as Predictor
