"""Environments: their state is exact, and those that crash, hang or give NaN lose nothing else."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from odd_envs import Counting, Growing, Odd, fail, hang
from towerpack import ConfigError, EnvError, StateError
from towerpack.rl import Atari, Step, VectorEnv, make_envs


def play(envs: VectorEnv, steps: int, seed: int = 0) -> list[Step]:
    rng, space = np.random.default_rng(seed), envs.action_space
    shape = (envs.num_envs, *(space.shape or ()))
    if isinstance(space, Discrete):
        return [envs.step(rng.integers(0, space.n, shape)) for _ in range(steps)]
    return [envs.step(rng.uniform(-2, 2, shape).astype(np.float32)) for _ in range(steps)]


KINDS: dict[str, tuple[Callable[[], VectorEnv], tuple[int, ...]]] = {
    "serial": (lambda: make_envs("CartPole-v1", 3, seed=1, backend="serial"), (0, 1, 57)),
    "native": (lambda: make_envs("CartPole-v1", 5, seed=1), (0, 1, 57)),
    "native, rarely seeded": (
        lambda: make_envs("CartPole-v1", 5, seed=1, reseed_after=30),
        (101,),
    ),
    "process": (lambda: make_envs(Counting, 2, seed=1, timeout=60), (9,)),
    "Pendulum": (lambda: make_envs("Pendulum-v1", 2, seed=1, reseed_after=300), (250,)),
    "Breakout": (lambda: make_envs("ALE/Breakout-v5", 2, seed=1, life_loss=True), (80,)),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_state_restored_in_a_new_object_goes_on_bit_for_bit(name: str) -> None:
    make, places = KINDS[name]
    for place in places:
        with make() as envs, make() as others:
            envs.reset()
            play(envs, place)
            state, now = envs.state(), envs.observations.copy()
            np.testing.assert_array_equal(others.restore(state), now)
            for one, other in zip(play(envs, 40), play(others, 40), strict=True):
                for a, b in zip(one, other, strict=True):
                    np.testing.assert_array_equal(a, b)
    assert state["episode"].max() > 0


def test_a_native_environment_plays_what_single_ones_play() -> None:
    serial, native = (
        make_envs("CartPole-v1", 6, seed=3, backend=backend) for backend in ("serial", "native")
    )
    np.testing.assert_array_equal(serial.reset(), native.reset())
    for one, other in zip(play(serial, 80), play(native, 80), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_step_tells_what_actions_led_to_and_what_comes_next() -> None:
    with make_envs(Counting, 2, seed=0) as envs:
        envs.reset()
        steps = play(envs, 8)
    assert [list(step.final[0]) for step in steps] == [[i] for i in (1, 2, 3, 4, 5, 6, 1, 2)]
    assert [list(step.observations[0]) for step in steps] == [[i] for i in (1, 2, 3, 4, 5, 0, 1, 2)]
    assert [bool(step.terminated[1]) for step in steps] == [i == 5 for i in range(8)]
    assert [step.returns[0] for step in steps] == [1, 2, 3, 4, 5, 6, 1, 2]


def test_atari_gives_four_frames_that_move_on() -> None:
    envs = make_envs("ALE/Pong-v5", 2, seed=0)
    before = envs.reset()
    assert envs.frames == 4 and before.shape[1:] == (4, 84, 84)
    assert before.dtype == np.uint8
    assert not before[:, :3].any()
    after = play(envs, 5)
    np.testing.assert_array_equal(after[4].observations[:, :3], after[3].observations[:, 1:])
    assert 80 < after[4].observations.mean() < 110


@pytest.mark.parametrize(
    ("fault", "backend", "cause"),
    [
        (fail, "serial", "the ball has left the table"),
        (fail, "process", "the ball has left the table"),
        (functools.partial(os._exit, 3), "process", "its process died with exit code 3"),
        (hang, "process", "it did not answer in time"),
    ],
)
def test_a_failed_environment_is_restarted_counted_and_reported(
    fault: Callable[[], float], backend: Any, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "towerpack"):
        with make_envs(
            functools.partial(Counting, fault, 1), 2, seed=0, backend=backend, timeout=1.0
        ) as envs:
            envs.reset()
            steps = play(envs, 10)
            restarts = envs.restarts
    cut = [(t, i) for t, step in enumerate(steps) for i in range(2) if step.truncated[i]]
    assert len(cut) == restarts == len(caplog.messages) > 0
    assert all(cause in message for message in caplog.messages)
    for t, i in cut:
        assert steps[t].final[i] == 2  # the last observation that there was
        assert steps[t].rewards[i] == 0
        assert steps[t].observations[i] == 0
        assert steps[t + 1].final[i] == 1
    ends = sum(step.terminated.sum() for step in steps)
    assert 20 - 6 * 2 < 6 * ends + 3 * restarts <= 20  # nothing lost: all steps are of episodes


@pytest.mark.parametrize(
    ("env", "options", "error", "words"),
    [
        ("CartPoel-v1", {}, ConfigError, "CartPole"),
        ("ALE/Pongg-v5", {}, ConfigError, "Pong"),
        ("CartPole-v1", {"backend": "threads"}, ConfigError, "process"),
        ("Pendulum-v1", {"backend": "native"}, ConfigError, "serial"),
        ("CartPole-v1", {"num_envs": 0}, ConfigError, "num_envs must be at least 1, got 0"),
        (Atari("Pong"), {"timeout": 1.0}, ConfigError, "AtariPreprocessing"),
        ("ALE/Pong-v5", {"backend": "serial"}, ConfigError, "AtariPreprocessing"),
        (functools.partial(Counting, fail), {}, EnvError, "4 times in a row"),
        (functools.partial(Counting, lambda: np.nan), {}, EnvError, "at step 2"),
        (fail, {"backend": "serial"}, EnvError, "fail cannot be created"),
        (fail, {"backend": "process"}, EnvError, "left the table"),
    ],
)
def test_one_clear_error(env: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        with make_envs(env, **{"num_envs": 1, "seed": 0, **options}) as envs:
            envs.reset()
            play(envs, 30)


@pytest.mark.parametrize(
    ("form", "backend"),
    [("reset", "serial"), ("step", "serial"), ("shape", "serial"), ("shape", "process")],
)
def test_another_form_than_gymnasiums_is_an_error(form: str, backend: Any) -> None:
    with pytest.raises(EnvError):
        with make_envs(functools.partial(Odd, form), 1, seed=0, backend=backend) as envs:
            envs.reset()
            play(envs, 4)


def test_observations_must_be_arrays_and_actions_of_their_shape() -> None:
    class Named(Counting):
        observation_space: Any = Dict(place=Box(0, 1))

    with pytest.raises(ConfigError, match="FlattenObservation"):
        make_envs(Named, 1, seed=0)
    with make_envs(Counting, 2, seed=0) as envs:
        envs.reset()
        with pytest.raises(ConfigError, match=r"\(3,\)"):
            envs.step(np.zeros(3, int))
        with (
            make_envs(Counting, 1, seed=0) as one,
            pytest.raises(StateError, match="environments must be 2"),
        ):
            one.restore(envs.state())


def test_an_environment_that_is_not_deterministic_begins_anew_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with make_envs(Growing, 1, seed=0) as envs, make_envs(Growing, 1, seed=0) as others:
        envs.reset()
        with caplog.at_level(logging.WARNING, "towerpack"):
            others.restore(envs.state())
    assert "not deterministic" in caplog.messages[0]
