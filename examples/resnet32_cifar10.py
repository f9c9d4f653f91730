"""The demo suite's walk-through, ResNet-32 on pictures of CIFAR-10 in a CSV file, part by part.

    python resnet32_cifar10.py cifar10/train.csv      # lines `picture.png,label`

An inputter, a modeler with its network, callbacks and a runner, found by the names of their modules
as there. `towerpack train resnet32-cifar10` is the whole recipe in one line.
"""

import argparse
import importlib
from pathlib import Path

from towerpack.apps import Runner
from towerpack.apps.classification import ClassificationConfig, DataConfig

arguments = argparse.ArgumentParser()
arguments.add_argument("dataset_meta", type=Path, help="a CSV file")
arguments.add_argument("--epochs", type=int, default=4)
arguments.add_argument("--model_dir", default="runs/image_classification_cifar10")
given = arguments.parse_args()

# The data.
inputter_config = DataConfig(
    inputter="csv",
    path=str(given.dataset_meta.parent),
    train=given.dataset_meta.name,
    batch_size=64,
    size=(32, 32),
    channels=3,
    num_classes=10,
)
augmenter = importlib.import_module("towerpack.apps.classification.augmenters").cifar
inputter_name = "towerpack.apps.classification.csv_inputter"
inputter = importlib.import_module(inputter_name).build(inputter_config, augmenter)

# The network and the model that owns it.
network_name = "towerpack.zoo.resnet32"
net = importlib.import_module(network_name).net
config = ClassificationConfig(
    data=inputter_config,
    optimizer={"name": "momentum", "learning_rate": 0.01},
    train={"epochs": given.epochs},
)
modeler_name = "towerpack.apps.classification"
modeler = importlib.import_module(modeler_name).ClassificationModeler(config, inputter, net)

# Loss, error, speed and checkpoints are there by themselves; these come on top.
callback_names = ["CheckNumerics", "ProgressBar"]
callbacks = [
    getattr(importlib.import_module("towerpack.callbacks"), name)() for name in callback_names
]

runner = Runner(config, inputter, modeler, given.model_dir, callbacks)
trainer = runner.train()
print("validation error", trainer.monitors.latest("val/error"))
