from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack._core.extras import require
from towerpack._core.files import csv_of, refuse_link, replace_file
from towerpack._core.locks import FileLock, is_held, locked
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack._core.pictures import png
from towerpack._core.randomness import derive_seed
from towerpack._display.figures import pixels_of, without_latex
from towerpack.apps._application import Recipe
from towerpack.apps._inputter import damaged_in_run
from towerpack.apps._runner import Runner, make_trainer
from towerpack.callbacks import Callback
from towerpack.callbacks.watch import Mode
from towerpack.config import change, key_paths, to_yaml
from towerpack.training import StopTraining, TrainConfig, Trainer, find_batch_size

_LOG = get_logger(__name__)
WINNER: Final = "best.yaml"
_RANGE: Final = {"low", "high", "log", "step"}
_RETAKEN: Final = "retaken"
_LOCK: Final = "study.lock"
_LOOK_AGAIN_S: Final = 0.05


@dataclass(frozen=True)
class Search:
    """Result of a search.

    Attributes:
        rows: Leaderboard, best trial first: trial, value, state, and the settings.
        titles: Column titles of the leaderboard.
        best: Settings of the best trial.
        value: Score of the best trial.
        files: Written files: the best recipe, the leaderboard, a plot of importances.
    """

    rows: Sequence[Sequence[Any]]
    titles: Sequence[str]
    best: Mapping[str, Any]
    value: float
    files: Sequence[Path]


def search(recipe: Recipe, folder: Path, *, trials: int, seed: int = 0) -> Search:
    """Run trials until the study has `trials` trials, including those of earlier calls.

    The score of a trial is the best value of the recipe's metric on validation data. Test data are
    never read. A trial that is below the median of the others at the same epoch is stopped (Golovin
    et al. 2017). Settings of trials whose process was killed are tried again.

    Args:
        recipe: Recipe with a search space: `search: {optimizer.learning_rate: {low: 1e-4, high: 1,
            log: true}, optimizer.name: [adam, momentum]}`.
        folder: Folder for the study and its runs. Several processes may share the folder.
        trials: Total number of trials.
        seed: Seed of the suggestions. With a single process, they depend only on the seed.

    Raises:
        ConfigError: The search space is invalid.
        TowerpackError: No trial was completed.
    """
    space = _checked(recipe)
    metric, mode = Runner.from_recipe(recipe).best
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / _LOCK, look_again_s=_LOOK_AGAIN_S):
        study = _study(folder, mode)
        _retake(study, folder)
    while True:
        with locked(folder / _LOCK, look_again_s=_LOOK_AGAIN_S):
            counted = [t for t in study.get_trials(False) if _RETAKEN not in t.user_attrs]
            if len([t for t in counted if t.state.name != "WAITING"]) >= trials:
                break
            # Each trial has its own sampler, so that suggestions do not depend on restarts.
            drawn = derive_seed(seed, "trial", len(counted)) >> 33
            study.sampler = _optuna().samplers.TPESampler(seed=drawn, constant_liar=True)
            trial = study.ask()
            alive = FileLock(_lock_of(folder, trial))
            alive.acquire()
        try:
            settings = _suggested(trial, space, folder)
            _run(study, _Watch(trial, metric, mode), recipe, settings, folder)
        finally:
            alive.release()
    return _result(study, recipe, folder, metric)


def search_batch_size(recipe: Recipe, **options: Any) -> dict[int, float]:
    """Find the largest `data.batch_size` of a recipe that fits into memory.

    Args:
        recipe: Recipe, whose training data are used.
        options: Additional arguments of `towerpack.training.find_batch_size`.

    Raises:
        TowerpackError: Training with batch size 1 fails.
    """
    trainer = partial(_trainer_of, recipe)
    return find_batch_size(partial(_config_of, recipe), trainer=trainer, **options)


def _config_of(recipe: Recipe, batch_size: int) -> TrainConfig:
    config = change(recipe.config, **{"data.batch_size": batch_size})
    return Runner.from_recipe(replace(recipe, config=config)).train_config("never")


def _trainer_of(recipe: Recipe, config: TrainConfig) -> Trainer:
    return make_trainer(config, recipe.config.train.trainer, recipe.config.train.devices)


class _Watch(Callback):
    """Callback that reports the metric to Optuna, and stops a trial that Optuna prunes."""

    def __init__(self, trial: Any, metric: str, mode: Mode) -> None:
        self.trial, self._metric = trial, metric
        self._better = min if mode == "min" else max
        self.needs = (metric,)
        self.value: float | None = None
        self.pruned = False

    def trigger(self) -> None:
        latest = self.trainer.monitors.latest(self._metric)
        self.value = latest if self.value is None else self._better(self.value, latest)
        self.trial.report(self.value, self.trainer.epoch)
        self.pruned = self.trial.should_prune() and self.trainer.epoch < self.trainer.max_epoch
        if self.pruned:
            raise StopTraining


def _run(
    study: Any, watch: _Watch, recipe: Recipe, settings: Mapping[str, Any], folder: Path
) -> None:
    trial = watch.trial
    shown = ", ".join(f"{name}={value}" for name, value in settings.items())
    _LOG.info("Trial %d: %s", trial.number, shown)
    config = change(recipe.config, **settings, search={})
    tried = Recipe(recipe.application, config, recipe.name, None)
    try:
        Runner.from_recipe(tried, folder / f"trial-{trial.number:04d}", [watch]).train()
    except TowerpackError as error:
        _LOG.warning("Trial %d failed: %s", trial.number, error)
        trial.set_user_attr("error", str(error))
    state = "FAIL" if watch.value is None else "PRUNED" if watch.pruned else "COMPLETE"
    value = watch.value if state == "COMPLETE" else None
    study.tell(trial, value, state=_optuna().trial.TrialState[state])


def _optuna() -> Any:
    optuna: Any = require("optuna", extra="apps", needed_for="towerpack tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _study(folder: Path, mode: str) -> Any:
    file = refuse_link(folder / "study.db")
    try:
        return _optuna().create_study(
            study_name="towerpack",
            storage=f"sqlite:///{file.resolve()}",
            load_if_exists=True,
            direction="minimize" if mode == "min" else "maximize",
            pruner=_optuna().pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
        )
    except Exception as error:  # Optuna and SQLAlchemy raise errors of many kinds
        raise damaged_in_run(file, error) from error


def _retake(study: Any, folder: Path) -> None:
    """Queue the settings of trials whose process has ended, to try them again."""
    for trial in study.get_trials(False):
        if trial.state.name != "RUNNING" or is_held(_lock_of(folder, trial)):
            continue
        study._storage.set_trial_user_attr(trial._trial_id, _RETAKEN, True)
        study.tell(trial.number, state=_optuna().trial.TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params)


def _lock_of(folder: Path, trial: Any) -> Path:
    return folder / f"trial-{trial.number:04d}.lock"


def _checked(recipe: Recipe) -> dict[str, Any]:
    space, known = recipe.config.search, key_paths(type(recipe.config))
    if not space:
        raise ConfigError(
            f"The recipe {recipe.name} must have a search space.",
            expected="search: {optimizer.learning_rate: {low: 1e-4, high: 1, log: true}}",
            fix="add the key `search` to the recipe, or pass --space FILE",
        )
    for name, choices in space.items():
        if name not in known:
            raise ConfigError(
                f"The search space names an unknown key '{name}'.", fix=did_you_mean(name, known)
            )
        is_range = isinstance(choices, dict) and {"low", "high"} <= choices.keys() <= _RANGE
        if is_range:
            low, high = choices["low"], choices["high"]
            numbers = all(isinstance(end, int | float) for end in (low, high))
            is_range = numbers and low < high and (low > 0 or not choices.get("log"))
        if not is_range and not (isinstance(choices, list) and choices):
            raise ConfigError(
                f"The search space of {name} must be a range or a list of values, got {choices!r}.",
                expected="{low: 1e-4, high: 1, log: true}, with integers {low, high, step}, or a "
                "list of values",
            )
    return dict(space)


def _suggested(trial: Any, space: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    try:
        return {name: _suggestion(trial, name, choices) for name, choices in space.items()}
    except ValueError as error:
        raise ConfigError(
            f"The study in {folder} has a different search space.",
            got=str(error),
            fix="restore the search space, or start a new study with a different --out",
        ) from error


def _suggestion(trial: Any, name: str, choices: Any) -> Any:
    if isinstance(choices, list):
        # Optuna accepts only plain values as choices, so let it choose an index.
        return choices[trial.suggest_categorical(name, range(len(choices)))]
    whole = all(isinstance(choices[end], int) for end in ("low", "high"))
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, **choices)


def _result(study: Any, recipe: Recipe, folder: Path, metric: str) -> Search:
    space = recipe.config.search

    def settings(trial: Any) -> dict[str, Any]:
        lists = {name for name, choices in space.items() if isinstance(choices, list)}
        return {n: space[n][v] if n in lists else v for n, v in trial.params.items() if n in space}

    done = [t for t in study.get_trials(False) if _RETAKEN not in t.user_attrs]
    complete = [t for t in done if t.state.name == "COMPLETE"]
    if not complete:
        errors = [t.user_attrs["error"] for t in done if "error" in t.user_attrs]
        raise TowerpackError(
            "All trials failed or were stopped early, so there is no best trial.",
            details="\n".join(errors[:1]),
            fix="run the recipe with `towerpack train` first, and correct its errors",
        )
    sign = 1 if study.direction.name == "MINIMIZE" else -1
    complete.sort(key=lambda t: sign * t.value)
    others = [t for t in done if t.state.name in ("PRUNED", "FAIL")]
    titles = ["trial", metric, "state", *space]
    rows = [
        [t.number, t.value, t.state.name.lower(), *(settings(t).get(name) for name in space)]
        for t in (*complete, *others)
    ]
    best = settings(complete[0])
    reached = {metric: complete[0].value, "trials": len(done), "trial": complete[0].number}
    winner = change(recipe.config, **best, search={}, reached=reached)
    files = {
        folder / WINNER: to_yaml(winner).encode(),
        folder / "leaderboard.csv": csv_of([titles, *rows]),
        folder / "importance.png": _drawn(study, len(complete), metric),
    }
    for path, content in files.items():
        replace_file(path, content)
    return Search(rows, titles, best, complete[0].value, list(files))


@without_latex()
def _drawn(study: Any, complete: int, metric: str) -> bytes:
    """Draw the importance of settings (Hutter et al. 2014) and the scores of the trials."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.set(title="Values of the trials", xlabel="trial", ylabel=metric)
    trials = [t for t in study.get_trials(False) if t.state.name == "COMPLETE"]
    left.plot([t.number for t in trials], [t.value for t in trials], "o")
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set(title="Importance of the settings", xlabel="share of the explained variance")
    if complete > 3:
        shares = _optuna().importance.get_param_importances(study)
        right.barh(list(shares)[::-1], list(shares.values())[::-1])
    else:
        right.text(0.5, 0.5, "needs at least four trials", ha="center", transform=right.transAxes)
    return png(pixels_of(figure))
