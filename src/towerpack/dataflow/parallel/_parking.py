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
        for crew in reversed(self._crews):
            if crew.usable and crew.options == options:
                self._crews.remove(crew)
                return crew
        # Imported when needed: what they import is a third of importing the package.
        if options.backend == "thread":
            from towerpack.dataflow.parallel._thread import ThreadCrew

            return ThreadCrew(options)
        from towerpack.dataflow.parallel._process import ProcessCrew

        return ProcessCrew(options)

    def park(self, crew: Crew) -> None:
        """Keep a crew for the next pass."""
        if self._closed or not crew.usable:
            crew.close()
            return
        self._crews.append(crew)
        while len(self._crews) > _MOST:
            self._crews.pop(0).close()

    def close(self) -> None:
        """End all that wait here, and those that come back."""
        self._closed = True
        while self._crews:
            self._crews.pop().close()
