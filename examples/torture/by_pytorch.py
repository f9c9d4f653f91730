"""A loop that saves model, optimizer, loader and random state every five steps, atomically.

Settings: `StatefulDataLoader(timeout=10)` on a dataset that has its generator in its state;
`clip_grad_norm_(error_if_nonfinite=True)`; `use_deterministic_algorithms`.
"""

import os

import torch
from job import BATCH, Job, work
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader


class Rows(torch.utils.data.Dataset):
    def __init__(self, job):
        self.job, self.generator = job, torch.Generator()
        self.seeded = False

    def __len__(self):
        return len(self.job.x)

    def __getitem__(self, index):
        if not self.seeded:  # in a worker, each of which has a seed
            self.generator.manual_seed(torch.initial_seed())
            self.seeded = True
        x = torch.from_numpy(work(self.job.directory, self.job.x[index]))
        return x + 0.1 * torch.randn(x.shape, generator=self.generator), self.job.y[index]

    def state_dict(self):
        return {"generator": self.generator.get_state(), "seeded": self.seeded}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.seeded = state["seeded"]


def loader(job):
    timeout = 10 if job.workers else 0
    return StatefulDataLoader(
        Rows(job), BATCH, shuffle=True, num_workers=job.workers, timeout=timeout
    )


def network(job):
    return nn.Sequential(nn.Linear(job.width, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))


def save(value, path):
    if os.environ.get("RANK", "0") == "0":
        torch.save(value, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)


def validate(net, job):
    net.eval()
    with torch.no_grad():
        cost = nn.functional.mse_loss(net(torch.tensor(job.x_val)), torch.tensor(job.y_val))
    net.train()
    return cost.item()


def main(job):
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    net = model = network(job)
    if job.ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    data = loader(job)
    first = step = 0
    best, rng = float("inf"), None
    job.run_dir.mkdir(exist_ok=True)
    newest, best_file = job.run_dir / "newest.pt", job.run_dir / "best.pt"
    if newest.exists():
        state = torch.load(newest)
        first, step, best = state["epoch"], state["step"], state["best"]
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        data.load_state_dict(state["data"])
        rng = state["rng"]
    for epoch in range(first, job.epochs):
        batches = iter(data)  # draws a random number, also if it continues
        if rng is not None:
            torch.set_rng_state(rng)
            rng = None
        for x, y in batches:
            cost = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            cost.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e9, error_if_nonfinite=True)
            optimizer.step()
            step += 1
            if step % 5 == 0:
                state = {"epoch": epoch, "step": step, "best": best, "net": net.state_dict()}
                state.update(optimizer=optimizer.state_dict(), data=data.state_dict())
                save({**state, "rng": torch.get_rng_state()}, newest)
            job.say(step)
        if (cost_val := validate(net, job)) < best:
            best = cost_val
            save(net.state_dict(), best_file)
    weights = [value.numpy() for value in net.state_dict().values()]
    net = network(job)
    net.load_state_dict(torch.load(best_file))
    job.finish(weights, validate(net, job))


if __name__ == "__main__":
    main(Job())
