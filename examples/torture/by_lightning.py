"""Lightning with the loader of the PyTorch program, and hooks that save the random state.

Settings: `ModelCheckpoint(every_n_train_steps=5, save_last=True)` and another one for the best;
`ckpt_path="last"`; `detect_anomaly=True`; `deterministic=True`.
"""

import logging
import warnings

import lightning
import torch
from by_pytorch import loader, network
from job import Job
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn


class Net(lightning.LightningModule):
    def __init__(self, job):
        super().__init__()
        self.job, self.net, self.rng = job, network(job), None

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["rng"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint):
        self.rng = checkpoint["rng"]

    def on_train_start(self):
        if self.rng is not None:
            torch.set_rng_state(self.rng)

    def on_train_batch_start(self, batch, index):
        if self.rng is not None and index:  # the loader has drawn a random number to continue
            torch.set_rng_state(self.rng)
        self.rng = None

    def on_train_batch_end(self, outputs, batch, index):
        self.job.say(self.global_step)


def main(job):
    lightning.seed_everything(0, workers=True)
    net = Net(job)
    pairs = torch.utils.data.TensorDataset(torch.tensor(job.x_val), torch.tensor(job.y_val))
    validation = torch.utils.data.DataLoader(pairs, len(pairs))
    newest = ModelCheckpoint(
        job.run_dir / "newest", every_n_train_steps=5, save_last=True, enable_version_counter=False
    )
    best = ModelCheckpoint(job.run_dir / "best", monitor="val")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=job.ranks,
        strategy="ddp" if job.ranks > 1 else "auto",
        max_epochs=job.epochs,
        callbacks=[newest, best],
        deterministic=True,
        detect_anomaly=True,
        default_root_dir=job.run_dir,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(net, loader(job), validation, ckpt_path="last")
    weights = [value.numpy() for value in net.net.state_dict().values()]
    (row,) = trainer.validate(net, validation, ckpt_path="best", verbose=False)
    job.finish(weights, row["val"])


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    main(Job())
