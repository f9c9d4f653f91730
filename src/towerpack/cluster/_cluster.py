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
    '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}; '
    '"cluster" may also have "chief" and "ps"'
)


@dataclass(frozen=True)
class Cluster:
    """Addresses of all processes of a distributed job, and which of them this process is.

    Args:
        jobs: Addresses `host:port` by task type. Types are 'worker', 'ps' (parameter server) and
            'chief', which coordinates parameter servers or is the first worker.
        task_type: Type of this process.
        task_index: Index of this process among the addresses of its type.

    Raises:
        ConfigError: This process is not in the cluster, or an address is not valid.
    """

    jobs: Mapping[str, Sequence[str]]
    task_type: str
    task_index: int

    def __post_init__(self) -> None:
        if unknown := sorted(self.jobs.keys() - set(TASK_TYPES)):
            raise ConfigError(f"Task types must be {', '.join(TASK_TYPES)}, got {unknown[0]!r}.")
        for addresses in self.jobs.values():
            wrong = [x for x in addresses if not _ADDRESS.fullmatch(str(x))]
            if isinstance(addresses, str) or wrong:
                raise ConfigError(
                    'The addresses of a cluster must be lists ["host:port", ...], got '
                    f"{wrong[0] if wrong else addresses!r}."
                )
        number = len(self.jobs.get(self.task_type, ()))
        if not 0 <= self.task_index < number:
            raise ConfigError(
                f"The task '{self.task_type} {self.task_index}' must be part of the cluster, which "
                f"has {number} tasks of this type, and the types {', '.join(self.jobs)}."
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Cluster | None:
        """Return the cluster that the environment describes, or None if it describes none.

        `TF_CONFIG` has priority over the variables of a SLURM step. A step, which `srun` starts,
        has one worker per task. The shell of a batch script is not a step.

        Args:
            environment: Environment variables.

        Raises:
            ConfigError: The variables do not describe a valid cluster.
        """
        if environment.get("TF_CONFIG", "").strip():
            return cls._from_tf_config(environment["TF_CONFIG"])
        if (tasks := slurm_tasks(environment)) is not None:
            return cls({"worker": tasks[0]}, "worker", tasks[1])
        return None

    @classmethod
    def _from_tf_config(cls, text: str) -> Cluster | None:
        try:
            config: Any = json.loads(text)
            if config == {}:
                return None
            jobs, task = dict(config["cluster"]), config["task"]
            # Old programs list an evaluator beside the cluster. Here, the chief evaluates.
            if task["type"] != "evaluator":
                jobs.pop("evaluator", None)
            return cls({name: list(jobs[name]) for name in jobs}, task["type"], int(task["index"]))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(
                f"The environment variable TF_CONFIG must describe a cluster in JSON: {reason}",
                got=text[:500],
                expected=_FORM,
                fix="correct TF_CONFIG, or unset it to train on this machine alone",
            ) from error

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run's files: the 'chief', or else the first worker."""
        return (self.task_type, self.task_index) == self.tasks[0]

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """Type and index of every task: chief, workers, then parameter servers."""
        return [(name, i) for name in TASK_TYPES for i in range(len(self.jobs.get(name, ())))]

    @property
    def peers(self) -> dict[str, str]:
        """Addresses of the other tasks, by name: `worker 1`."""
        others = [task for task in self.tasks if task != (self.task_type, self.task_index)]
        return {f"{job} {i}": self.jobs[job][i] for job, i in others}

    @property
    def workers(self) -> list[tuple[str, int]]:
        """Tasks that compute steps. The chief is one of them if there are no parameter servers."""
        computing = ("worker",) if self.jobs.get("ps") else ("chief", "worker")
        return [task for task in self.tasks if task[0] in computing]

    @property
    def number_of_workers(self) -> int:
        """Number of tasks that compute steps."""
        return len(self.workers)

    @property
    def worker_index(self) -> int:
        """Index of this process among `workers`. Raises ValueError if it computes no steps."""
        return self.workers.index((self.task_type, self.task_index))

    @property
    def name(self) -> str:
        """Name of this process in messages: `worker 1 (10.0.0.2:2222)`."""
        return self._name_of(self.task_type, self.task_index)

    def peer_name(self, index: int) -> str:
        """Return the name of a worker in messages.

        Args:
            index: Index among `workers`.
        """
        return self._name_of(*self.workers[index])

    def _name_of(self, task_type: str, task_index: int) -> str:
        return f"{task_type} {task_index} ({self.jobs[task_type][task_index]})"

    def tf_config(self) -> str:
        """Return the cluster as the value of the environment variable `TF_CONFIG`."""
        jobs = {name: list(addresses) for name, addresses in self.jobs.items() if addresses}
        return json.dumps(
            {"cluster": jobs, "task": {"type": self.task_type, "index": self.task_index}}
        )
