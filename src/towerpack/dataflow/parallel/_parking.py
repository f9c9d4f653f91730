"""Crews between passes: they wait with the stage that they belong to."""

from __future__ import annotations

from towerpack.dataflow.parallel._crew import Crew
from towerpack.dataflow.parallel._options import Options

# Two, for two passes side by side, each followed by another.
_MOST = 2


class Parking:
    """The crews of one stage that no pass uses now."""

    def __init__(self) -> None:
        self._crews: list[Crew] = []
        self._closed = False

    def take(self, options: Options) -> Crew:
        """A crew: one that waits here, or a new one."""
        while self._crews:
            crew = self._crews.pop()
            if crew.usable and crew.options == options:
                return crew
            crew.close()
        # Imported when needed: what they import is a third of importing the package.
        if options.backend == "thread":
            from towerpack.dataflow.parallel._thread import ThreadCrew

            return ThreadCrew(options)
        from towerpack.dataflow.parallel._process import ProcessCrew

        return ProcessCrew(options)

    def park(self, crew: Crew) -> None:
        """Keep a crew for the next pass."""
        if self._closed or not crew.usable or len(self._crews) >= _MOST:
            crew.close()
        else:
            self._crews.append(crew)

    def close(self) -> None:
        """End all that wait here, and those that come back."""
        self._closed = True
        while self._crews:
            self._crews.pop().close()
