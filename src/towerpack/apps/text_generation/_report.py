from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from towerpack._core.columns import aligned
from towerpack._core.files import csv_of, replace_file
from towerpack.apps._modeler import Reporting
from towerpack.apps.text_generation._inputter import TextInputter


class TextReport(Reporting):
    """Metric of cost in nats per token, perplexity and bits per character, in total and per text.

    Args:
        inputter: Data, which contain the texts.
    """

    better = "min"

    def __init__(self, inputter: TextInputter) -> None:
        self._inputter = inputter
        self._nats: dict[int, float] = {}
        self._tokens: dict[int, float] = {}

    def outputs(self) -> Sequence[str]:
        return ["nats", "counted", "text"]

    def names(self) -> Sequence[str]:
        return ["cost", "perplexity", "bits_per_character"]

    def begin(self) -> None:
        self._nats, self._tokens = {}, {}

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        columns = (outputs[name].tolist() for name in self.outputs())
        for nats, tokens, text in zip(*columns, strict=True):
            self._nats[text] = self._nats.get(text, 0.0) + nats
            self._tokens[text] = self._tokens.get(text, 0.0) + tokens

    def finish(self) -> Mapping[str, float]:
        return dict(zip(self.names(), self._numbers(list(self._nats)), strict=True))

    def lines(self) -> Sequence[str]:
        return aligned(self._rows(), "<>>>>")

    def report(self, folder: Path) -> Sequence[Path]:
        table = folder / "texts.csv"
        replace_file(table, csv_of(self._rows()))
        return [table]

    def _numbers(self, texts: Sequence[int]) -> tuple[float, float, float]:
        nats, tokens = (sum(sums[t] for t in texts) for sums in (self._nats, self._tokens))
        characters = sum(self._tokens[t] * self._inputter.characters_per_token(t) for t in texts)
        cost = nats / max(tokens, 1)
        return cost, math.exp(min(cost, 700)), nats / math.log(2) / max(characters, 1)

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            ("text", "tokens", "nats/token", "perplexity", "bits/character")
        ]
        for text in sorted(self._nats):
            values = [f"{value:.4f}" for value in self._numbers([text])]
            name, tokens = self._inputter.name_of(text), f"{self._tokens[text]:.0f}"
            rows.append((name, tokens, *values))
        return rows
