"""Experience as an input source: environments are played between two calls of many steps."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError, StateError
from towerpack._core.randomness import derive_seed
from towerpack.callbacks import Callback, TrainerHost
from towerpack.inputs import InputSource
from towerpack.rl._envs import Step, VectorEnv
from towerpack.rl._networks import MLP, Host, Network

MakeEnvs = Callable[[int], VectorEnv]


class Player:
    """Environments that are played on, and what their last hundred episodes gave.

    Args:
        envs: Are reset, unless there is a state.
        state: From `state`.

    Attributes:
        observations: Of all environments, now.
        steps: Steps done, of all environments together.
    """

    def __init__(self, envs: VectorEnv, state: Mapping[str, Any] | None = None) -> None:
        self.envs = envs
        self.observations = envs.reset() if state is None else envs.restore(state["envs"])
        self.steps: int = 0 if state is None else state["steps"]
        self._ended: deque[list[float]] = deque(state["ended"] if state else (), maxlen=100)

    def step(self, actions: np.ndarray) -> Step:
        """Act in all environments; those whose episode ends are reset."""
        done = self.envs.step(actions)
        self.observations = done.observations
        self.steps += self.envs.num_envs
        for i in np.flatnonzero(done.terminated | done.truncated):
            self._ended.append([float(done.returns[i]), float(done.lengths[i])])
        return done

    def numbers(self) -> dict[str, float]:
        """Means over the last hundred episodes, and counts."""
        numbers = {"env_steps": float(self.steps), "env_restarts": float(self.envs.restarts)}
        if self._ended:
            mean = np.mean(self._ended, axis=0)
            numbers |= {"episode/return": float(mean[0]), "episode/length": float(mean[1])}
        return numbers

    def state(self) -> dict[str, Any]:
        """Where everything stands."""
        return {"envs": self.envs.state(), "steps": self.steps, "ended": list(self._ended)}


class Experience(InputSource):
    """Batches from environments that the policy in training plays itself.

    Where the last batches are used up, `reserve` plays on with the weights of that moment and makes
    those of the next phase. A checkpoint between two phases holds where the environments stood; one
    inside of a phase also what its batches are made of. A phase that is interrupted while
    environments are played is played again.

    Args:
        make_envs: Makes the environments from a seed.
        network: Of the policy; a small `MLP` plays on the host.
        scope: Of the network in the tower, and of its last layer, `head`.
        output: What the tower exposes there: that layer's output, or what is made of it.
        batches: In a phase.
        room: First dimensions of `rows`.

    Attributes:
        fetches: Outputs of each step that `after_step` wants.
        rows: Of a phase, on the device: [*room, …] for each input of the model.
        host: The run, from its setup on.
        player: Plays the environments, from `start` on.
        seed: The run's.
        phase: Number of the phase that is played next.
    """

    fetches: Sequence[str] = ()
    host: TrainerHost
    player: Player

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

    def setup(self, specs: Sequence[tf.TensorSpec], *, seed: int, replicas: int = 1) -> None:
        """Make room for a phase.

        Raises:
            ConfigError: There are several replicas.
        """
        if replicas != 1:
            raise ConfigError(
                "An agent's policy plays and learns in one replica.", got=f"{replicas} replicas"
            )
        self.seed = seed
        with tf.device("CPU:0"):
            self._cursor = tf.Variable(tf.constant(0, tf.int64), trainable=False)
        self.rows = [
            tf.Variable(tf.zeros([*self._room, *spec.shape[1:]], spec.dtype), trainable=False)
            for spec in specs
        ]

    def load(self, columns: Sequence[Any]) -> None:
        """Fill `rows`, in or outside of a graph."""
        for variable, column in zip(self.rows, columns, strict=True):
            variable.assign(tf.reshape(column, variable.shape), read_value=False)

    def start(self, state: Any = None) -> None:
        """Make the environments, and bring them to where they stood."""
        envs = self._make_envs(derive_seed(self.seed, "environments"))
        self.player = Player(envs, None if state is None else state["player"])
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
                "The run stands inside of a phase, which had another number of batches.",
                got=f"{self.batches}",
                expected=f"{state['of']}, of which it has taken {state['position']}",
                fix="resume with the old settings, or from a checkpoint at an epoch's end",
            )
        self._cursor.assign(self._position)

    def reserve(self, steps: int, poll: Callable[[], None]) -> int:
        """Play the next phase, if the last one is used up."""
        if self._position == self.batches:
            self.gather(poll)
            self.phase += 1
            self._position = 0
            self._cursor.assign(0)
            self._snapshot = self._take()
        return min(steps, self.batches - self._position)

    def get(self, step: tf.Tensor | tf.Variable) -> list[tf.Tensor]:
        """The next batch of this phase."""
        return self.batch(self._cursor.assign_add(1) - 1)

    def consumed(self, steps: int) -> None:
        """Count."""
        self._position += steps

    def state(self) -> Any:
        """The environments, and what is left of the phase."""
        left = self.batches - self._position
        return {
            **self._snapshot,
            "position": self._position,
            "of": self.batches,
            "batches": self.remaining(left),
        }

    def _take(self) -> dict[str, Any]:
        return {"player": self.player.state(), "phase": self.phase, "kept": self.keep()}

    def stop(self) -> None:
        """Close the environments."""
        if hasattr(self, "player"):
            self.player.envs.close()

    def policy(self) -> Host:
        """What the head gives for observations, on the weights as they are now."""
        # A subclass may compute something else.
        if isinstance(self._network, MLP) and type(self._network) is MLP:
            variables = self.host.tower.store.named_variables()
            return self._network.on_host(variables, self._scope)
        if self._graph_policy is None:
            predict, _ = self.host.predict_function([f"{self._scope}/{self._output}"])
            spec = self.host.tower.specs[0]
            run = tf.function(lambda x: predict(x)[0], input_signature=[spec], autograph=False)
            self._graph_policy = run.get_concrete_function()
        return lambda observations: self._graph_policy(tf.convert_to_tensor(observations)).numpy()

    # ------------------------------------------------------------------ what an agent says

    def open(self, kept: Any) -> None:
        """Make what lasts over phases; `kept` is what `keep` gave."""

    def keep(self) -> Any:
        """State of that, between two phases."""
        return None

    @abstractmethod
    def gather(self, poll: Callable[[], None]) -> None:
        """Play, and make the batches of a phase. `poll` several times a second; it may raise."""

    def batch(self, position: tf.Tensor) -> list[tf.Tensor]:
        """In the graph: the batch of this number in the phase; by default, that of `rows`."""
        return [tf.gather(variable, position) for variable in self.rows]

    def remaining(self, left: int) -> Any:
        """What `refill` needs to have the batches of this phase again; None for no need of it.

        Args:
            left: Batches that have not been used yet.
        """
        return [variable.numpy() for variable in self.rows] if left else None

    def refill(self, state: Any) -> None:
        """Make them of that."""
        self.load(state)

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        """Take what was fetched of a step."""


class ShowEpisodes(Callback):
    """Joins an agent's experience to its run, and monitors what episodes give.

    `episode/return` and `episode/length` are means over the last hundred episodes of the training,
    exploration included; `env_steps` and `env_restarts` count.
    """

    def __init__(self, source: Experience) -> None:
        self._source = source

    def setup(self, trainer: TrainerHost) -> None:
        """Hand the run to the source."""
        self._source.host = trainer
        self.fetch(*self._source.fetches)

    def acts_in(self, hook: str) -> bool:
        """Single steps matter where something is fetched."""
        return super().acts_in(hook) and (hook != "after_step" or bool(self.fetches))

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        """Hand it over."""
        self._source.after_step(outputs)

    def produces(self) -> Sequence[str]:
        """The four numbers."""
        return ["episode/return", "episode/length", "env_steps", "env_restarts"]

    def trigger(self) -> None:
        """Put them; the returns once an episode has ended."""
        for name, value in self._source.player.numbers().items():
            self.trainer.monitors.put_scalar(name, value, self.trainer.global_step)
