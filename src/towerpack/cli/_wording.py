"""Errors of the Python interface in terms of the command line."""

from __future__ import annotations

import re
from typing import Any

from towerpack._core.errors import TowerpackError

_COMMANDS = {"train", "eval", "infer", "tune", "export", "model", "demo"}
_TRAIN = "xla|deterministic|precision|steps_per_epoch|overfit_batches|fast_dev_run"


def _setting(match: re.Match[str]) -> str:
    value = match[2].lower() if match[2] in ("True", "False", "None") else match[2]
    return f"train.{match[1]}={value}"


# What Python programs write, and what stands for it on the command line; in this order.
_WORDS: list[tuple[str, Any]] = [
    (r"SmartInit\(…, ignore_mismatch=True\) .*", "set transfer.ignore_mismatch=true to leave them "
     "out, or name them in transfer.skip=REGEX"),
    (r"SmartInit\(…, rename=.*", "set transfer.pretrained to weights of this network"),
    (r"rename= maps names.*", "use the recipe that the checkpoint was trained with"),
    (r"SmartInit\(skip=(.*?)\)", r"transfer.skip=\1"),
    (r"SmartInit\(ignore_mismatch=True\)", "transfer.ignore_mismatch=true"),
    (r"TrainConfig\(resume='never', init=…\)", "transfer.pretrained=RUN and a new --run-dir"),
    (r"TrainConfig\(extra_callbacks=\[CheckNumerics\(\), …\]\)", "train.callbacks=[CheckNumerics]"),
    (r"TrainConfig\((\w+=[^,)]*)[^)]*\)", r"\1"),
    (r"init=…", "transfer.pretrained=RUN"),
    (r"split a \w+ before.*", "set train.devices=NUMBER, which splits the processor if no GPU is "
     "found"),
    (r"(?<![\w.])devices=", "train.devices="),
    (r"WeightEMA\(optimizer, \w+\)|WeightEMA\(optimizer, 0.999\)", "train.ema=0.999"),
    (r"AccumulateGradients\(optimizer, steps\)", "optimizer.accumulate=STEPS"),
    (r", or BatchData\(…, remainder=True\)", ""),
    (r"(run_dir=|with run_dir= or on_existing='new')", "--run-dir"),
    (r"on_existing='new' takes", "a different --run-dir takes"),
    (r"resume='never'", "a new --run-dir"),
    (r"outputs=\['prob'\]", "--outputs prob"),
    (r"batch_examples(=…|=| )", "--examples FILE.npz "),
    (r"quantize=None", "no --quantize"),
    (r"version=None", "leave --version out"),
    (r"tolerance=", "--tolerance NUMBER"),
    (r"\bema=True", "--ema"),
    (r"\btag=", "--tag NAME"),
    (r"\b(format|quantize)='([^']*)'", r"--\1 \2"),
    (rf"(?<![\w.])({_TRAIN})='?(\w+)'?", _setting),
    (r"(?<![\w.])max_epoch=(\w+)", r"train.epochs=\1"),
]  # fmt: skip


def in_commands(error: TowerpackError, command: str) -> None:
    """Rewrite what an error says in the words of a command's options and settings."""
    if command in _COMMANDS:
        for name in ("what", "got", "expected", "fix"):
            text = getattr(error, name)
            for python, words in _WORDS if text else ():
                text = re.sub(python, words, text)
            setattr(error, name, text and text.rstrip())
