"""Generative adversarial networks (GANs): models, losses, training steps and trainers."""

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.gan")

from towerpack.gan import losses as losses
from towerpack.gan._fid import FID as FID
from towerpack.gan._fid import frechet_distance as frechet_distance
from towerpack.gan._model import GANModelDesc as GANModelDesc
from towerpack.gan._model import RandomZData as RandomZData
from towerpack.gan._samples import SampleGrid as SampleGrid
from towerpack.gan._spectral import spectral_norm as spectral_norm
from towerpack.gan._step import GANStep as GANStep
from towerpack.gan._step import GANTrainer as GANTrainer
from towerpack.gan._step import SeparateGANStep as SeparateGANStep
from towerpack.gan._step import SeparateGANTrainer as SeparateGANTrainer
