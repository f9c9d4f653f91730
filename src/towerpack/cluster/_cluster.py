"""The processes of a job and their addresses, as a scheduler describes them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from towerpack._core.errors import ConfigError
from towerpack.cluster._slurm import slurm_tasks

TASK_TYPES: Final = ("chief", "worker", "ps")
_ADDRESS: Final = re.compile(r"\S+:\d+")
_FORM: Final = (
    '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, '
    'in "cluster" also "chief" and "ps"'
)


@dataclass(frozen=True)
class Cluster:
    """The processes of one job, and which of them this one is.

    Args:
        jobs: Addresses `host:port` by type of task: 'worker'; 'ps' for parameter servers; and
            'chief' for the process that coordinates them, or for a worker that is the first one.
        task_type: The type of this process.
        task_index: Its position among the addresses of its type.

    Raises:
        ConfigError: This process is not in the cluster, or something is no address.
    """

    jobs: Mapping[str, Sequence[str]]
    task_type: str
    task_index: int

    def __post_init__(self) -> None:
        if unknown := sorted(self.jobs.keys() - set(TASK_TYPES)):
            raise ConfigError(
                f"A cluster has no tasks of type {unknown[0]!r}.",
                expected=", ".join(TASK_TYPES),
            )
        for addresses in self.jobs.values():
            wrong = [x for x in addresses if not _ADDRESS.fullmatch(str(x))]
            if isinstance(addresses, str) or wrong:
                raise ConfigError(
                    "A cluster is described by lists of addresses.",
                    got=repr(wrong[0] if wrong else addresses),
                    expected='["host:port", ...]',
                )
        number = len(self.jobs.get(self.task_type, ()))
        if not 0 <= self.task_index < number:
            raise ConfigError(
                f"There is no {self.task_type} {self.task_index} in the cluster.",
                got=f"{number} addresses of type {self.task_type!r}",
                expected=f"an index below {number}" if number else f"one of {', '.join(self.jobs)}",
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Cluster | None:
        """The cluster that `TF_CONFIG` describes, else that of a SLURM step; None without both.

        A SLURM step, which `srun` starts, has as many workers as tasks. The shell of a batch
        script is none.

        Raises:
            ConfigError: What is there describes no cluster.
        """
        if environment.get("TF_CONFIG", "").strip():
            return cls._from_tf_config(environment["TF_CONFIG"])
        if (tasks := slurm_tasks(environment)) is not None:
            return cls({"worker": tasks[0]}, "worker", tasks[1])
        return None

    @classmethod
    def _from_tf_config(cls, text: str) -> Cluster | None:
        try:
            found: Any = json.loads(text)
            if found == {}:
                return None
            jobs, task = dict(found["cluster"]), found["task"]
            # TensorFlow's estimators had one beside the cluster; chiefs evaluate here.
            if task["type"] != "evaluator":
                jobs.pop("evaluator", None)
            return cls({name: list(jobs[name]) for name in jobs}, task["type"], int(task["index"]))
        except (ValueError, KeyError, TypeError) as error:
            why = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(
                "The environment variable TF_CONFIG describes no cluster of which this process is "
                f"one: {why}",
                got=text[:500],
                expected=_FORM,
                fix="unset it to train on this machine alone",
            ) from error

    @property
    def is_chief(self) -> bool:
        """This process writes the run: the 'chief', where there is none the first worker."""
        return (self.task_type, self.task_index) == self.tasks[0]

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """Type and index of every task: chief, workers, parameter servers."""
        return [(name, i) for name in TASK_TYPES for i in range(len(self.jobs.get(name, ())))]

    @property
    def peers(self) -> dict[str, str]:
        """Addresses of the other tasks, by name: `worker 1`."""
        others = [task for task in self.tasks if task != (self.task_type, self.task_index)]
        return {f"{job} {i}": self.jobs[job][i] for job, i in others}

    @property
    def workers(self) -> list[tuple[str, int]]:
        """Tasks that compute steps; a chief does where there are no parameter servers."""
        computing = ("worker",) if self.jobs.get("ps") else ("chief", "worker")
        return [task for task in self.tasks if task[0] in computing]

    @property
    def number_of_workers(self) -> int:
        """The number of tasks that compute steps."""
        return len(self.workers)

    @property
    def worker_index(self) -> int:
        """The position of this process among `workers`; ValueError if it is none of them."""
        return self.workers.index((self.task_type, self.task_index))

    @property
    def name(self) -> str:
        """The name of this process for messages: `worker 1 (10.0.0.2:2222)`."""
        return self._name_of(self.task_type, self.task_index)

    def peer_name(self, index: int) -> str:
        """The name of the worker with a `worker_index`."""
        return self._name_of(*self.workers[index])

    def _name_of(self, task_type: str, task_index: int) -> str:
        return f"{task_type} {task_index} ({self.jobs[task_type][task_index]})"

    def tf_config(self) -> str:
        """The cluster as the environment variable `TF_CONFIG` has it."""
        jobs = {name: list(addresses) for name, addresses in self.jobs.items() if addresses}
        return json.dumps(
            {"cluster": jobs, "task": {"type": self.task_type, "index": self.task_index}}
        )
