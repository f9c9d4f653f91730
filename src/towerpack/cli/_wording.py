from __future__ import annotations

import re

from towerpack._core.errors import TowerpackError

_COMMANDS = {"train", "eval", "infer", "tune", "export", "model", "demo"}
_KEYS = "xla|deterministic|precision|steps_per_epoch|overfit_batches|fast_dev_run|devices"
# Patterns of Python code, and their replacements on the command line. The order matters.
_WORDS = {
    r"skip .*SmartInit\(…, ignore.*": "set transfer.ignore_mismatch=true or transfer.skip=REGEX",
    r"map .*SmartInit\(…, rename=.*": "set transfer.pretrained to weights of this network",
    r"SmartInit\(skip=(.*?)\)": r"transfer.skip=\1",
    r"train with WeightEMA\(.*": "set train.ema and train again",
    r"continue from .*? with a lower learning rate": "remove the newest checkpoints, and set "
    "optimizer.learning_rate to a lower value",
    r"; set \S*=\S* to skip and count bad datapoints": "",
    r" \(in Python: .*?\)": "",
    r"TrainConfig\(resume='never', init=SmartInit\(.*\)\)": "set transfer.pretrained=RUN, "
    "transfer.ignore_mismatch=true and --run-dir NEW",
    r"TrainConfig\(resume='never', init=[^()]*\)": "set transfer.pretrained=RUN and --run-dir NEW",
    r"TrainConfig\((\w+=[^,)]*)[^)]*\)": r"\1",
    r"init=…": "transfer.pretrained=RUN",
    r"split a \w+ before.*": "set train.devices=NUMBER, which splits a processor",
    r", or (use )?BatchData\(…, remainder=True\)": "",
    r"run_dir=( or on_existing='new')?": "--run-dir",
    r"on_existing='new'|resume='never'": "a new --run-dir",
    r"outputs=\['prob'\]": "--outputs prob",
    r"batch_examples(=…|=)": "--examples FILE.npz",
    r"use version=None for the next number": "leave --version out",
    r"tolerance=": "--tolerance NUMBER",
    r"\b(format|quantize)='([^']*)'": r"--\1 \2",
    rf"(?<![\w.])({_KEYS})=": r"train.\1=",
    r"(train\.\w+)='(\w+)'": r"\1=\2",
    "=True": "=true",
    "=False": "=false",
}


def in_commands(error: TowerpackError, command: str) -> None:
    """Replace Python code in the texts of an error with options of a command."""
    for name in ("what", "got", "expected", "fix") if command in _COMMANDS else ():
        if text := getattr(error, name):
            for python, words in _WORDS.items():
                text = re.sub(python, words, text)
            setattr(error, name, text)
