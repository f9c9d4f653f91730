"""What every data set is: a plan that is read in order or shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given, integer_of, names_of
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Node
from towerpack.dataflow.sources._planned import PlannedSource


class Dataset(PlannedSource[Node]):
    """Base of data sets: `len`, `ds[i]` in the files' order, and passes in order or shuffled.

    Contract: as `PlannedSource`.
    """

    def __getitem__(self, index: int) -> Datapoint:
        if isinstance(cast("object", index), slice):
            raise ConfigError(
                "A data set gives one datapoint at a time.",
                got=given(index),
                fix="[ds[i] for i in range(...)]; the first n in each pass: FixedSizeData(ds, n)",
            )
        return self._node.get(0, range(len(self))[integer_of(index, "the index")])


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> str:
    """Refuse what is not among the choices.

    Raises:
        ConfigError: It is not.
    """
    if value in choices:
        return value
    expected = ", ".join(repr(choice) for choice in choices)
    raise ConfigError(f"There is no {argument}={value!r}.", expected=expected)


def part_names(names: Sequence[str]) -> list[str]:
    """Names of parts of a data set; one string is one name.

    Raises:
        ConfigError: There are none.
    """
    listed = names_of(names)
    if not listed:
        raise ConfigError("No part of the data set is named.", expected="one or more")
    return listed
