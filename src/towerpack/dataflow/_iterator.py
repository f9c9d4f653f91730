"""The iterator that users hold, and the state that they save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from towerpack._core.errors import StateError, TowerpackError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._stream import State, Stream, Tally

VERSION = 1


@dataclass(frozen=True)
class Identity:
    """Which pass of which pipeline an iterator runs."""

    signature: str
    pipeline: str
    seed: int
    epoch: int


class DataIterator:
    """One pass over a flow. Not safe to share between threads without a lock.

    Holds everything about the pass; the flow knows nothing of it. Works as a context manager,
    which closes it.
    """

    def __init__(self, stream: Stream, identity: Identity, tally: Tally) -> None:
        self._stream = stream
        self._advance = stream.__next__
        self._identity = identity
        self._tally = tally

    def __iter__(self) -> DataIterator:
        return self

    def __next__(self) -> Datapoint:
        try:
            return self._advance()
        except TowerpackError as error:
            error.pipeline = error.pipeline or self._identity.pipeline
            raise

    def state(self) -> dict[str, Any]:
        """Where this pass is, for `flow.iterate(state=...)`: small, and msgpack can carry it.

        Describes the position before the datapoint that `next` would give. If `next` raised, that
        is the datapoint that failed.
        """
        identity = self._identity
        return {
            "version": VERSION,
            "flow": identity.signature,
            "seed": identity.seed,
            "epoch": identity.epoch,
            "at": self._stream.state(),
            "skipped": self._tally.skipped,
        }

    @property
    def seed(self) -> int:
        """What this pass's randomness is a function of, with the epoch."""
        return self._identity.seed

    @property
    def epoch(self) -> int:
        """Which pass this is."""
        return self._identity.epoch

    @property
    def skipped(self) -> int:
        """How many bad datapoints `on_error="skip"` has left out of this pass so far."""
        return max(0, self._tally.skipped)

    def close(self) -> None:
        """Give up generators, files and workers that the pass holds."""
        self._stream.close()
        for close in self._tally.closing:
            close()

    def __enter__(self) -> DataIterator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class Saved:
    """A state that was found to fit."""

    seed: int
    epoch: int
    at: State
    skipped: int


def read_state(state: object, signature: str, *, seed: int | None, epoch: int | None) -> Saved:
    """Check a state against the pipeline and the arguments that it is to continue with.

    Raises:
        StateError: It is no state, or one of another pipeline, seed or epoch.
    """
    if not isinstance(state, Mapping) or not {"version", "flow", "seed", "epoch", "at"} <= set(
        cast("Mapping[object, object]", state)
    ):
        raise StateError(
            f"This is no state of an iterator: {state!r:.80}",
            expected="what `iterator.state()` returned",
        )
    fields = cast("Mapping[str, Any]", state)
    if fields["version"] != VERSION:
        raise StateError(
            f"This state has version {fields['version']!r}.",
            expected=f"version {VERSION}",
            fix="continue with the version of Towerpack that wrote it",
        )
    if fields["flow"] != signature:
        raise StateError(
            f"This state belongs to another pipeline: {_difference(fields['flow'], signature)}.",
            got=str(fields["flow"]),
            expected=signature,
            fix="build the pipeline as it was when the state was taken, or start afresh",
        )
    for name, wanted in (("seed", seed), ("epoch", epoch)):
        if wanted is not None and wanted != fields[name]:
            raise StateError(
                f"The {name} given and the state's {name} differ.",
                got=f"{name}={wanted}",
                expected=f"{name}={fields[name]}, from the state",
                fix=f"leave out {name}=: the state carries it",
            )
    return Saved(fields["seed"], fields["epoch"], fields["at"], fields.get("skipped", 0))


def _difference(saved: object, current: str) -> str:
    theirs, ours = str(saved).split(" > "), current.split(" > ")
    for place, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if their != our:
            return f"stage {place} was {their} and is {our}"
    more = theirs[len(ours) :] or ours[len(theirs) :]
    return f"{' > '.join(more)} is {'missing' if len(theirs) > len(ours) else 'new'}"
