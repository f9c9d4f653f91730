from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack import Cluster, ConfigError
from towerpack.cluster._slurm import expand_nodes

WORKERS = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
SERVED = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
WITH_CHIEF = {"chief": ["a:1"], "worker": ["b:1"]}


@pytest.mark.parametrize(
    ("jobs", "task", "is_chief", "workers", "peers"),
    [
        (WORKERS, ("worker", 0), True, 2, ["worker 0 (10.0.0.1:2222)", "worker 1 (10.0.0.2:2222)"]),
        (WORKERS, ("worker", 1), False, 2, None),
        (WITH_CHIEF, ("chief", 0), True, 2, ["chief 0 (a:1)", "worker 0 (b:1)"]),
        (WITH_CHIEF, ("worker", 0), False, 2, None),
        (SERVED, ("chief", 0), True, 2, ["worker 0 (b:1)", "worker 1 (c:1)"]),
        (SERVED, ("ps", 0), False, 2, None),
    ],
)
def test_places(
    jobs: dict[str, list[str]],
    task: tuple[str, int],
    is_chief: bool,
    workers: int,
    peers: list[str] | None,
) -> None:
    cluster = Cluster(jobs, *task)
    assert Cluster.from_environment({"TF_CONFIG": cluster.tf_config()}) == cluster
    assert (cluster.is_chief, cluster.number_of_workers) == (is_chief, workers)
    names = [cluster.peer_name(i) for i in range(workers)]
    assert peers is None or names == peers
    if task in cluster.workers:
        assert names[cluster.worker_index] == cluster.name


def test_an_evaluator_beside_the_cluster_is_left_out() -> None:
    jobs = {**WITH_CHIEF, "evaluator": ["e:1"]}
    text = json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 0}})
    cluster = Cluster.from_environment({"TF_CONFIG": text})
    assert cluster == Cluster(WITH_CHIEF, "worker", 0)


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_without_a_description_there_is_no_cluster(environment: dict[str, str]) -> None:
    assert Cluster.from_environment(environment) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ("[]", "list"),
        (json.dumps({"cluster": WORKERS}), "no 'task'"),
        (json.dumps({"cluster": WORKERS, "task": {"type": "worker"}}), "no 'index'"),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 2}}),
            "'worker 2' must be part",
        ),
        (json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": -1}}), "worker -1"),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "ps", "index": 0}}),
            "'ps 0' must be part",
        ),
        (
            json.dumps({"cluster": {"helper": ["a:1"]}, "task": {"type": "helper", "index": 0}}),
            "helper",
        ),
        (
            json.dumps({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}),
            "addr",
        ),
        (
            json.dumps({"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}),
            "addr",
        ),
    ],
)
def test_a_broken_tf_config_is_told(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"TF_CONFIG .*{why}") as caught:
        Cluster.from_environment({"TF_CONFIG": text})
    assert caught.value.got == text


STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[09-10],big",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2),2",
}


def test_a_slurm_step_is_a_cluster_of_workers() -> None:
    found = [Cluster.from_environment({**STEP, "SLURM_PROCID": str(i)}) for i in range(4)]
    first = found[0]
    assert first is not None and first.is_chief
    assert [cluster and cluster.worker_index for cluster in found] == [0, 1, 2, 3]
    assert all(cluster and cluster.jobs == first.jobs for cluster in found)
    hosts, ports = zip(*(address.split(":") for address in first.jobs["worker"]), strict=True)
    assert hosts == ("n09", "n10", "big", "big")
    assert [int(port) - int(ports[0]) for port in ports] == [0, 0, 0, 1]
    other = Cluster.from_environment({**STEP, "SLURM_PROCID": "0", "SLURM_JOB_ID": "4712"})
    assert other is not None and other.jobs != first.jobs


@pytest.mark.parametrize(
    ("counts", "hosts"),
    [
        ({"SLURM_NTASKS_PER_NODE": "2"}, ["n09", "n09", "n10", "n10"]),
        ({}, ["n09", "n09", "n10", "n10"]),
    ],
)
def test_tasks_of_a_node_by_other_variables(counts: dict[str, str], hosts: list[str]) -> None:
    step = {key: value for key, value in STEP.items() if key != "SLURM_STEP_TASKS_PER_NODE"}
    cluster = Cluster.from_environment({**step, **counts, "SLURM_PROCID": "0"})
    assert cluster is not None
    assert [address.split(":")[0] for address in cluster.jobs["worker"]] == hosts


def test_what_is_no_slurm_step() -> None:
    batch = {**STEP, "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[09-10],big"}
    del batch["SLURM_STEP_NODELIST"]
    assert Cluster.from_environment(batch) is None
    with pytest.raises(ConfigError, match="must run on n10, but runs on big"):
        Cluster.from_environment({**STEP, "SLURM_PROCID": "1", "SLURMD_NODENAME": "big"})


RANGE = st.tuples(st.integers(0, 120), st.integers(0, 4), st.integers(1, 3))
PART = st.tuples(
    st.from_regex(r"[a-z][a-z0-9.-]{0,5}", fullmatch=True), st.lists(RANGE, max_size=3)
)


@given(st.lists(PART, min_size=1, max_size=4))
def test_node_lists(parts: list[tuple[str, list[tuple[int, int, int]]]]) -> None:
    listed: list[str] = []
    names: list[str] = []
    for name, ranges in parts:
        numbers = [
            [str(n).zfill(width) for n in range(low, low + more + 1)] for low, more, width in ranges
        ]
        inside = ",".join(f"{n[0]}-{n[-1]}" if len(n) > 1 else n[0] for n in numbers)
        listed.append(f"{name}[{inside}]" if ranges else name)
        names += [name + n for each in numbers for n in each] if ranges else [name]
    assert expand_nodes(",".join(listed)) == names


def test_node_list_of_two_dimensions() -> None:
    assert expand_nodes("r[1-2]n[8,10]") == ["r1n8", "r1n10", "r2n8", "r2n10"]
