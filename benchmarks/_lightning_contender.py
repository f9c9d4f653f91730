"""PyTorch Lightning in `trainers.py`: `python _lightning_contender.py NAME DIRECTORY [--quick]`."""

from __future__ import annotations

import sys
from itertools import pairwise

import lightning
import numpy as np
import torch
from _measure import Gate
from _trainers_images import BATCH, WORKERS, load, number, photos
from torch import nn
from torch.nn import functional


class Photos(torch.utils.data.Dataset):
    """The pictures."""

    def __init__(self, count: int) -> None:
        self._files, self._labels = photos(count)
        self._rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        if self._rng is None:  # now in a worker, which has a seed of its own
            self._rng = np.random.default_rng(torch.initial_seed())
        return load(self._files[index], self._rng), self._labels[index]


def conv(channels: int, filters: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters)]


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        stride = filters // channels
        body = [*conv(channels, filters, stride), nn.ReLU(), *conv(filters, filters)]
        self.body = nn.Sequential(*body)
        other = nn.Conv2d(channels, filters, 1, stride)
        self.shortcut = nn.Identity() if stride == 1 else other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet20(lightning.LightningModule):
    """As `resnet20` in `_trainers_contenders.py`."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        blocks = [Block(*pair) for pair in pairwise(sizes)]
        ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        self.net = nn.Sequential(*conv(3, 16), nn.ReLU(), *blocks, *ends)
        self.loss = torch.tensor(0.0)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x = batch[0].permute(0, 3, 1, 2).float() / 127.5 - 1  # so channels come last in memory
        loss = functional.cross_entropy(self.net(x), batch[1])
        self.loss = loss.detach()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


class Turns(lightning.Callback):
    """Ends a turn."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: ResNet20) -> None:
        trainer.should_stop = not self._gate.epoch_done(lambda: float(pl_module.loss))


def main() -> None:
    count = number(sys.argv[3:])
    gate = Gate(count)
    workers = {"num_workers": WORKERS, "persistent_workers": True}
    data = torch.utils.data.DataLoader(Photos(count), BATCH, shuffle=True, **workers)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=-1, callbacks=[Turns(gate)], **dict.fromkeys(quiet, False)
    )
    if gate.open():
        trainer.fit(ResNet20(), data)


if __name__ == "__main__":
    main()
