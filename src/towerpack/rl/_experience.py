from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from towerpack._core.errors import ConfigError, StateError
from towerpack._core.randomness import derive_seed
from towerpack.callbacks import Callback, TrainerHost
from towerpack.inputs import InputSource
from towerpack.rl._envs import VectorEnv
from towerpack.rl._networks import MLP, Host, Network

MakeEnvs = Callable[[int], VectorEnv]


class Experience(InputSource):
    """Base class of input sources that collect batches of experience with the current policy.

    When the batches of a phase are used up, `reserve` collects the next phase with the current
    weights. A checkpoint contains the state of the environments, and inside a phase also the
    batches. If collecting is interrupted, the phase is collected again after resuming.

    Subclasses override `gather`, and as needed `open`, `keep`, `batch`, `remaining`, `refill` and
    `after_step`.

    Args:
        make_envs: Function from a seed to the environments.
        network: Network of the policy; an `MLP` runs in NumPy.
        scope: Scope of the network in the tower, and of its last layer, `head`.
        output: Name in that scope of the policy's exposed output.
        batches: Number of batches in a phase.
        room: First dimensions of the arrays in `rows`.

    Attributes:
        fetches: Names of the step's outputs that `after_step` receives.
        rows: Data of a phase on the device: a variable [*room, …] for each input of the model.
        goal: Numbers of environment steps: in the whole training, in a phase, and additional ones
            in the first phase. None to train for the run's number of epochs.
        reported_settings: Settings by name. If a resumed run changes them, it reports this.
        host: The run, available after its setup.
        envs: The environments, available after `start`.
        seed: The run's seed.
        phase: Number of the phase that is collected next.
    """

    fetches: Sequence[str] = ()
    goal: tuple[int, int, int] | None = None
    reported_settings: Mapping[str, Any] = {}
    host: TrainerHost
    envs: VectorEnv

    def __init__(
        self,
        make_envs: MakeEnvs,
        network: Network,
        scope: str,
        *,
        output: str,
        batches: int,
        room: Sequence[int],
    ) -> None:
        self._make_envs = make_envs
        self._network, self._scope, self._output = network, scope, output
        self.batches, self._room = batches, list(room)
        self.seed = self.phase = 0
        self._position = batches
        self._snapshot: dict[str, Any] = {}
        self._graph_policy: Any = None

    def settings(self) -> Mapping[str, Any]:
        return getattr(self, "told", self.reported_settings)  # `told` is the old name

    def steps_left(self, state: Any) -> int | None:
        if self.goal is None:
            return None
        total, phase, before = self.goal
        left = total - state["envs"]["steps"] - (0 if state["phase"] else before)
        return state["of"] - state["position"] + max(0, -(-left // phase)) * self.batches

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        if replicas != 1:
            raise ConfigError(f"An agent must be trained on one replica, got {replicas} replicas.")
        self.seed = seed
        with tf.device("CPU:0"):
            self._cursor = tf.Variable(tf.constant(0, tf.int64), trainable=False)
        self.rows = [
            tf.Variable(tf.zeros([*self._room, *spec.shape[1:]], spec.dtype), trainable=False)
            for spec in specs
        ]

    def load(self, columns: Sequence[Any]) -> None:
        """Write arrays to some rows of the stored experience, in a graph or eagerly.

        Args:
            columns: An array or tensor for each input of the model.
        """
        for variable, column in zip(self.rows, columns, strict=True):
            variable.assign(tf.reshape(column, variable.shape), read_value=False)

    def start(self, state: Any = None) -> None:
        self.envs = self._make_envs(derive_seed(self.seed, "environments"))
        if state is None:
            self.envs.reset()
        else:
            self.envs.restore(state["envs"])
        self.phase = 0 if state is None else state["phase"]
        self.open(None if state is None else state["kept"])
        self._snapshot = self._take()
        self._position = self.batches
        if state is not None and state["of"] == self.batches:
            self._position = state["position"]
            if state["batches"] is not None:
                self.refill(state["batches"])
        elif state is not None and state["position"] < state["of"]:
            raise StateError(
                f"A phase must have {state['of']} batches, as in the checkpoint, got "
                f"{self.batches}.",
                fix="resume with the old settings, or from a checkpoint at the end of an epoch",
            )
        self._cursor.assign(self._position)

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        if self._position == self.batches:
            self.gather(poll)
            self.phase += 1
            self._position = 0
            self._cursor.assign(0)
            self._snapshot = self._take()
        return min(steps, self.batches - self._position)

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        return self.batch(self._cursor.assign_add(1) - 1)

    def consumed(self, steps: int) -> None:
        self._position += steps

    def state(self) -> Any:
        return {
            **self._snapshot,
            "position": self._position,
            "of": self.batches,
            "batches": self.remaining(self.batches - self._position),
        }

    def _take(self) -> dict[str, Any]:
        return {"envs": self.envs.state(), "phase": self.phase, "kept": self.keep()}

    def stop(self) -> None:
        if hasattr(self, "envs"):
            self.envs.close()

    def policy(self) -> Host:
        """Return a function from observations to the output of the policy, both NumPy arrays."""
        # A subclass of MLP may compute something else.
        if isinstance(self._network, MLP) and type(self._network) is MLP:
            variables = self.host.tower.store.named_variables()
            return self._network.on_host(variables, self._scope)
        if self._graph_policy is None:
            predict, _ = self.host.predict_function([f"{self._scope}/{self._output}"])
            spec = self.host.tower.specs[0]
            run = tf.function(lambda x: predict(x)[0], input_signature=[spec], autograph=False)
            self._graph_policy = run.get_concrete_function()
        return lambda observations: self._graph_policy(tf.convert_to_tensor(observations)).numpy()

    def open(self, state: Any) -> None:
        """Create the objects that all phases use.

        Args:
            state: Result of `keep`, or None.
        """

    def keep(self) -> Any:
        """Return the state of the objects that `open` created. Called between two phases."""
        return None

    @abstractmethod
    def gather(self, poll: Callable[[], None]) -> None:
        """Collect the batches of a phase.

        Args:
            poll: Function to call several times a second. It raises if the run must stop.
        """

    def batch(self, position: tf.Tensor) -> list[tf.Tensor]:
        """Return the tensors of a batch, by default one row of each array in `rows`.

        Args:
            position: Number of the batch in the phase, int64 scalar.
        """
        return [tf.gather(variable, position) for variable in self.rows]

    def remaining(self, left: int) -> Any:
        """Return a state from which `refill` can restore the batches of this phase, or None.

        Args:
            left: Number of unused batches in this phase.
        """
        return [variable.numpy() for variable in self.rows] if left else None

    def refill(self, state: Any) -> None:
        """Restore the batches of a phase.

        Args:
            state: Result of `remaining`.
        """
        self.load(state)

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        """Receive the outputs of a step that `fetches` names.

        Args:
            outputs: NumPy values by name.
        """


class ShowEpisodes(Callback):
    """Callback that connects an agent's experience to a run and reports its episodes.

    Reports `episode/return` and `episode/length`, which are means over the last 100 training
    episodes (with exploration), and the counts `env_steps` and `env_restarts`.

    Args:
        source: Experience of the agent.
    """

    def __init__(self, source: Experience) -> None:
        self._source = source

    def setup(self, trainer: TrainerHost) -> None:
        self._source.host = trainer
        self.fetch(*self._source.fetches)

    def before_train(self) -> None:
        self.trainer.monitors.directions["episode/return"] = "max"

    def acts_in(self, hook: str) -> bool:
        return super().acts_in(hook) and (hook != "after_step" or bool(self.fetches))

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        self._source.after_step(outputs)

    def produces(self) -> Sequence[str]:
        return ["episode/return", "episode/length", "env_steps", "env_restarts"]

    def trigger(self) -> None:
        for name, value in self._source.envs.statistics().items():
            self.trainer.monitors.put_scalar(name, value, self.trainer.global_step)
