from __future__ import annotations

import enum
import json
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack import StateError
from towerpack.checkpoint import decode_state, encode_state

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats(allow_nan=True)
    | st.text(st.characters())
    | st.binary()
)
KEYS = st.text() | st.sampled_from(["$dict", "$float", "$"]) | st.integers() | st.binary()
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equality that tells types, signs of zero and nan apart, and keeps the order of keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or one.hex() == other.hex()
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@given(STATES)
def test_nothing_is_lost(state: Any) -> None:
    data = encode_state(state)
    json.loads(data, parse_constant=pytest.fail)
    assert same(decode_state(data), state)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint64).reshape(2, 3) + 2**63,
        np.array([], np.float32).reshape(0, 4),
        np.array(2.5),
        np.array([np.nan, -0.0, np.inf], np.float16),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.array([1, 2], ">i4"),
        np.array([True, False]),
        np.array([1 + 2j]),
    ],
)
def test_arrays(array: np.ndarray) -> None:
    back = decode_state(encode_state({"a": array}))["a"]
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


@pytest.mark.parametrize("value", [np.float32(0.1), np.int64(3), np.bool_(True)])
def test_numpy_scalars_keep_their_type(value: np.generic) -> None:
    back = decode_state(encode_state(value))
    assert type(back) is type(value)
    assert back == value


def test_random_states_fit() -> None:
    rng, python = np.random.default_rng(0), random.Random(0)
    state = decode_state(encode_state([rng.bit_generator.state, python.getstate()]))
    other, other_python = np.random.default_rng(1), random.Random(1)
    other.bit_generator.state = state[0]
    other_python.setstate(state[1])
    assert other.random() == rng.random()
    assert other_python.random() == python.random()


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("value", [object(), {1, 2}, Colour.RED, np.array(["text"]), 1j, range(3)])
def test_what_cannot_be_stored_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(StateError) as caught:
        encode_state({"callbacks": [None, {"x": value}]})
    assert "state['callbacks'][1]['x']" in str(caught.value)


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(StateError, match="contains itself"):
        encode_state(state)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        '{"$eval": "1"}',
        '{"$float": "1"}',
        '{"$float": ["nan"]}',
        '{"$bytes": "?"}',
        '{"$bytes": "AA==", "more": 1}',
        '{"$array": ["O", [1], "AAAAAAAAAAA="]}',
        '{"$array": ["<f4", [1000000000000], "AAAAAA=="]}',
        '{"$array": ["<f4", [-1], "AAAAAA=="]}',
        '{"$array": ["f4,f4", [1], "AAAAAAAAAAA="]}',
        '{"$array": 3}',
        '{"$scalar": ["<f4", "AAAAAAAAAAA="]}',
        '{"$dict": [[1]]}',
        '{"$dict": [[[1], 2]]}',
        '{"$int": 3}',
        '{"$tuple": null}',
        "[" * 100_000,
        "9" * 5000,
        "\ud800",
    ],
)
def test_damaged_states_are_refused(text: str) -> None:
    with pytest.raises(StateError, match="not the JSON text of a saved state"):
        decode_state(text.encode(errors="surrogatepass"))
