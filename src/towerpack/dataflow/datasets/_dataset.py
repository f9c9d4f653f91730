"""What every data set is: a plan that is read in order or shuffled."""

from __future__ import annotations

from towerpack._core.errors import ConfigError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Node
from towerpack.dataflow.sources._planned import PlannedSource


class Dataset(PlannedSource[Node]):
    """Base of data sets: `len`, `ds[i]` in the files' order, and passes in order or shuffled.

    Contract: as `PlannedSource`.
    """

    def __getitem__(self, index: int) -> Datapoint:
        return self._node.get(0, range(len(self))[index])


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> str:
    """Refuse what is not among the choices.

    Raises:
        ConfigError: It is not.
    """
    if value in choices:
        return value
    expected = ", ".join(repr(choice) for choice in choices)
    raise ConfigError(f"There is no {argument}={value!r}.", expected=expected)
