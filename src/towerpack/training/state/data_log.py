r"""Data of each start of a run, from which the batch of each step can be read again.

They are in the ledger, which also has an event for each batch that was passed over because its cost
was not finite:

    {"event": "data", "step": 300, "start": {"state": {…}, "seed": 7, "replicas": 1, …}, …}
    {"event": "passed over", "step": 412, …}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from towerpack._core.arguments import arguments_of
from towerpack._core.files import count_of, json_lines, read_regular
from towerpack.checkpoint import decode_state, encode_state
from towerpack.inputs import InputSource
from towerpack.inputs.components import ComponentSpec

_MOST_BYTES = _MOST_PARTS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class DataStart:
    """Data of one start of the program.

    Attributes:
        step: Step from which the start continued.
        state: State of the data at this step; None for their beginning.
        known: Whether `state` is known. Large states are only in checkpoints.
        seed: Seed of the run.
        replicas: Number of replicas in each worker.
        workers: Number of workers.
        asynchronous: Whether devices take batches in an order that varies.
        skip_steps: First and last step of each skipped range.
        sources: Names of the input sources, the outermost first.
        infinite: Whether the source starts over at the end of the data.
        inputs: Name, dtype, shape and, if it has one, second key of each input of the model.
        settings: Settings of the data, by which a pipeline is recognized.
        passed: Steps after which a batch was passed over.
    """

    step: int = 0
    state: Any = None
    known: bool = True
    seed: int
    replicas: int = 1
    workers: int = 1
    asynchronous: bool = False
    skip_steps: Sequence[Any] = ()
    sources: Sequence[str] = ()
    infinite: bool = True
    inputs: Sequence[Any] = ()
    settings: Mapping[str, Any]
    passed: list[int] = field(default_factory=list)

    @property
    def all_replicas(self) -> int:
        """Number of replicas of all workers."""
        return self.replicas * self.workers

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Specs of the model's inputs."""
        return [
            ComponentSpec(tf.TensorSpec(shape, dtype, name), alias=next(iter(alias), None))
            for name, dtype, shape, *alias in self.inputs
        ]


def start_of(source: InputSource, specs: Sequence[tf.TensorSpec], **fields: Any) -> dict[str, Any]:
    """Return the fields of a `DataStart` as JSON values."""
    sources = [source]
    while (inner := getattr(sources[-1], "input", None)) is not None:
        sources.append(inner)
    state = json.loads(encode_state(source.state()))
    known = len(json.dumps(state)) <= _MOST_BYTES
    start = DataStart(
        state=state if known else None,
        known=known,
        sources=[type(each).__name__ for each in sources],
        infinite=arguments_of(sources[-1]).get("infinite") is not False,
        inputs=[_recorded(spec) for spec in specs],
        **fields,
    )
    return asdict(start)


def _recorded(spec: tf.TensorSpec) -> tuple[Any, ...]:
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    alias = getattr(spec, "alias", None)
    return (spec.name, spec.dtype.name, shape, *([alias] if alias else []))


def read_data_log(ledger: Path) -> list[DataStart]:
    """Return the starts in a ledger, oldest first. Skip damaged lines with a warning."""
    starts: list[DataStart] = []
    for entry in json_lines(read_regular(ledger) if ledger.exists() else b"", ledger, _parse):
        if isinstance(entry, DataStart):
            starts.append(entry)
        elif entry and starts:
            starts[-1].passed.append(entry)
    return starts


def _parse(tree: dict[str, Any]) -> DataStart | int | None:
    step = count_of(tree["step"])
    if tree["event"] != "data":
        return step if tree["event"] == "passed over" else None
    fields = dict(tree["start"])
    fields["state"] = decode_state(json.dumps(fields["state"]).encode())
    fields |= {n: count_of(fields[n], _MOST_PARTS) for n in ("replicas", "workers")}
    fields |= {"seed": int(fields["seed"]), "settings": dict(fields["settings"]), "passed": []}
    start = DataStart(**{**fields, "step": step})
    _ = start.specs, [*start.sources]
    return start
