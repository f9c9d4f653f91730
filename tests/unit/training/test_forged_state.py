"""A checkpoint from others, whose checksums are right and whose state is not."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from scaling import sample
from small_training import LINE, config, flow
from towerpack import TowerpackError
from towerpack.callbacks import EarlyStopping, ModelSaver
from towerpack.checkpoint import CheckpointStore, load_checkpoint
from towerpack.training import SimpleTrainer

BAD: list[Any] = [None, "x", [1, "a", None], {"a": 1}, -1, 10**30, 1e308, float("nan")]


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs: Any = enumerate(tree) if isinstance(tree, list) else []
    items = tree.items() if isinstance(tree, dict) else pairs
    return [path, *(p for key, value in items for p in places(value, (*path, key)))]


def forged(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return tree


def train(run: Path, epochs: int) -> None:
    callbacks = [ModelSaver(), EarlyStopping("cost", patience=9, mode="min")]
    settings = config(run, callbacks, model=LINE, dataflow=flow(), max_epoch=epochs, seed=None)
    SimpleTrainer(settings).train()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "line"
    train(run, 1)
    return run


def test_a_forged_state_is_an_error_of_ours_or_no_error(trained: Path, tmp_path: Path) -> None:
    saved = load_checkpoint(trained)
    # Callbacks of the user check their own states.
    where = [p for p in places(saved.state) if len(p) < 3 or p[0] not in ("settings", "callbacks")]
    pairs = [(path, value) for path in where for value in BAD]
    some = pairs[:: len(pairs) // 100 + 1]  # each trains for an epoch
    for number, (path, value) in enumerate(sample(some, at_least=16)):
        run = tmp_path / str(number)
        shutil.copytree(trained, run, ignore=shutil.ignore_patterns("checkpoints"))
        with CheckpointStore(run / "checkpoints") as store:
            store.save(saved.step, saved.tensors, forged(saved.state, path, value))
        try:
            train(run, 2)
        except TowerpackError:
            pass
        except Exception as error:
            raise AssertionError(f"{path} = {value!r}") from error
