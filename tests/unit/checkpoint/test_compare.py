from __future__ import annotations

import numpy as np
import pytest

from towerpack import CheckpointError, CheckpointMismatchError
from towerpack.checkpoint import compare_names

MODEL = {"conv0/kernel": ((3, 3, 1, 8), "float32"), "conv0/bias": ((8,), "float32")}


def test_agreement_is_silent() -> None:
    found = {name: (list(shape), np.dtype(dtype)) for name, (shape, dtype) in MODEL.items()}
    compare_names(MODEL, found)


def test_every_difference_is_listed() -> None:
    found = {
        "conv_0/kernel": ((3, 3, 1, 8), "float32"),
        "conv0/bias": ((16,), "float16"),
    }
    with pytest.raises(CheckpointMismatchError) as caught:
        compare_names(MODEL, found, what="the checkpoint step-00000100")
    assert str(caught.value) == (
        "The checkpoint step-00000100 belongs to another model: its tensors differ.\n"
        "  got       2 tensors: 1 missing, 1 unexpected, 1 of another shape or dtype\n"
        "  expected  2 tensors with the model's names, shapes and dtypes\n"
        "  to fix    restore the model's code of the checkpoint; or start a new run from the "
        "weights that fit: "
        "TrainConfig(resume='never', init=SmartInit(PATH, ignore_mismatch=True))\n"
        "  missing:\n"
        "    conv0/kernel float32 [3, 3, 1, 8] (did you mean 'conv_0/kernel'?)\n"
        "  unexpected:\n"
        "    conv_0/kernel float32 [3, 3, 1, 8]\n"
        "  different:\n"
        "    conv0/bias: has float16 [16], needs float32 [8]"
    )
    assert isinstance(caught.value, CheckpointError)


def test_another_dtype_is_another_model() -> None:
    found = {**MODEL, "conv0/bias": ((8,), "float16")}
    with pytest.raises(CheckpointMismatchError, match="another model"):
        compare_names(MODEL, found)


def test_long_lists_are_cut() -> None:
    many = {f"block{i}/kernel": ((1,), "float32") for i in range(100)}
    with pytest.raises(CheckpointMismatchError) as caught:
        compare_names(many, {})
    assert "… and 80 more" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 30
