"""Settings of a recipe of text generation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from towerpack.apps._config import AppConfig, Network, Optimizer
from towerpack.config import Config, Name, PathText


class DataConfig(Config):
    """Texts, and how they are divided."""

    path: str = "."
    "The folder of the files."
    train: str | list[str] = "*.txt"
    "Text files below path: names or patterns."
    val: str | list[str] | None = None
    "The same for validation; they are left out of `train`."
    test: str | list[str] | None = None
    "The same for the final test."
    validation: float = Field(default=0.05, gt=0, lt=0.5)
    "Without val, or test, the last part of the training texts: this share of them for each."
    encoding: str | None = None
    "Encoding of texts without a byte order mark, such as cp1252. null: UTF-8."
    unit: Literal["char", "word"] = "char"
    "What a token is."
    vocab_size: int = Field(default=10_000, ge=4)
    "Tokens that are known, at most: the most frequent ones of the training texts."
    batch_size: int = Field(default=32, ge=1)
    "Streams that are read side by side: the training texts are cut into as many parts."
    steps: int = Field(default=64, ge=1)
    "Tokens of each stream in a batch: so far gradients reach back."
    eval_steps: int = Field(default=512, ge=1)
    "Tokens that are predicted in a row of an evaluation."
    eval_context: int = Field(default=128, ge=0)
    "Tokens of the same text that are read before them; from the text's beginning at most."


class ModelConfig(Network):
    """The network."""

    network: Name = "rnn_basic"
    "rnn_basic, transformer, or module:name."
    vectors: PathText | None = None
    "A file of GloVe's form with vectors of words, with which the embedding begins."


class SampleConfig(Config):
    """How texts are continued."""

    length: int = Field(default=500, ge=1)
    "Tokens."
    temperature: float = Field(default=0.8, ge=0)
    "What logits are divided by; 0: always the most likely token."
    top_k: int = Field(default=0, ge=0)
    "Choose among so many of the most likely tokens; 0: all."
    top_p: float = Field(default=1.0, gt=0, le=1)
    "Choose among the most likely tokens that have this probability together."
    seed: int = 0
    "Of the choice."


class TextOptimizer(Optimizer):
    """Optimizer and learning rate; gradients of recurrent networks need a limit."""

    schedule: Literal["constant", "step", "linear", "cosine"] = "constant"
    "How the learning rate falls: `step` at `boundaries`, the others from warm-up to the end."
    clip_norm: float | None = Field(default=1.0, gt=0)
    "Scale gradients whose common norm is larger."


class TextGenerationConfig(AppConfig):
    """A recipe of text generation."""

    task: str = "text_generation"
    "The application."
    data: DataConfig = DataConfig()
    "Texts."
    model: ModelConfig = ModelConfig()
    "The network."
    optimizer: TextOptimizer = TextOptimizer()  # pyright: ignore[reportIncompatibleVariableOverride]
    "Optimizer and learning rate."
    sample: SampleConfig = SampleConfig()
    "How texts are continued; each command may say it anew."
