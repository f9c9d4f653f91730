"""What every data set is: a plan that is read in order or shuffled."""

from __future__ import annotations

from towerpack._core.errors import ConfigError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import Length, Place, Stage, check_seed
from towerpack.dataflow._plan import Node
from towerpack.dataflow.stages._shuffle import ShuffleNode


class Dataset(Stage):
    """Base of data sets: `len`, `ds[i]` in the files' order, and passes in order or shuffled.

    Contract: in order, or exactly shuffled; length known; random if shuffled; thread- and
    fork-safe; resumable at once.

    Args:
        node: Reads datapoints in the files' order.
        shuffle: Give every pass another order, as `ShuffleData` does.
        seed: For the shuffle alone; by default the run's.
    """

    def __init__(self, node: Node, *, shuffle: bool, seed: int | None) -> None:
        self._node = node
        self.shuffle = shuffle
        self.seed = None if seed is None else check_seed(seed)
        self.random = shuffle and seed is None

    def __getitem__(self, index: int) -> Datapoint:
        return self._node.get(0, range(len(self))[index])

    def length(self) -> Length:
        return self._node.size

    def identity(self) -> str:
        return f"{len(self)}, shuffled" if self.shuffle else str(len(self))

    def compile(self, place: Place) -> Node | None:
        return ShuffleNode(self._node, place.key(self, self.seed)) if self.shuffle else self._node


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> str:
    """Refuse what is not among the choices.

    Raises:
        ConfigError: It is not.
    """
    if value in choices:
        return value
    expected = ", ".join(repr(choice) for choice in choices)
    raise ConfigError(f"There is no {argument}={value!r}.", expected=expected)
