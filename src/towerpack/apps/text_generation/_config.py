from typing import Literal

from pydantic import Field

from towerpack.apps._config import AppConfig, Network, Optimizer
from towerpack.config import Config, Name, PathText


class DataConfig(Config):
    """Settings for reading texts and dividing them."""

    path: str = "."
    "Folder of the files."
    train: str | list[str] = "*.txt"
    "Training texts below path: names or patterns of files."
    val: str | list[str] | None = None
    "Validation texts, in the same form; they are removed from `train`."
    test: str | list[str] | None = None
    "Test texts, in the same form; they are removed from `train`."
    validation: float = Field(default=0.05, gt=0, lt=0.5)
    "Share of each training text, at its end, that replaces missing `val` or `test` texts."
    encoding: str | None = None
    "Encoding of texts without a byte order mark, such as cp1252. null: UTF-8."
    unit: Literal["char", "word"] = "char"
    "Kind of tokens."
    vocab_size: int = Field(default=10_000, ge=4)
    "Largest size of the vocabulary: the most frequent tokens of the training texts."
    batch_size: int = Field(default=32, ge=1)
    "Number of parallel streams into which the training texts are cut."
    steps: int = Field(default=64, ge=1)
    "Tokens of each stream in a batch; gradients flow through this many steps."
    eval_steps: int = Field(default=512, ge=1)
    "Number of predicted tokens in each row of an evaluation batch."
    eval_context: int = Field(default=128, ge=0)
    "Number of preceding tokens of the text that are read before the predicted tokens, if any."


class ModelConfig(Network):
    """Settings of the network."""

    network: Name = "rnn_basic"
    "rnn_basic, transformer, or module:name."
    vectors: PathText | None = None
    "Initial word vectors of the embedding: a text file in GloVe's format."


class SampleConfig(Config):
    """Settings for sampling the continuation of a text."""

    length: int = Field(default=500, ge=1)
    "Number of new tokens."
    temperature: float = Field(default=0.8, ge=0)
    "Divisor of the logits; 0: always choose the most likely token."
    top_k: int = Field(default=0, ge=0)
    "Choose among this many most likely tokens; 0: among all."
    top_p: float = Field(default=1.0, gt=0, le=1)
    "Choose among the most likely tokens whose probabilities add up to this value."
    seed: int = 0
    "Seed of the choice."


class TextOptimizer(Optimizer):
    """Settings of the optimizer and the learning rate."""

    schedule: Literal["constant", "step", "linear", "cosine"] = "constant"
    clip_norm: float | None = Field(default=1.0, gt=0)


class TextGenerationConfig(AppConfig):
    """Recipe of text generation."""

    task: str = "text_generation"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: TextOptimizer = TextOptimizer()  # pyright: ignore[reportIncompatibleVariableOverride]
    sample: SampleConfig = SampleConfig()
