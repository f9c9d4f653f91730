"""Settings of a recipe of text classification."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from towerpack.apps._config import AppConfig, Data, Network
from towerpack.config import Name, PathText


class DataConfig(Data):
    """Texts with labels, and their way to numbers of tokens."""

    inputter: Name = "table"
    "table (CSV, TSV), lines, folder (a file for each text, as IMDB's), or module:name."
    validation: float = Field(default=0.1, gt=0, lt=1)
    "Share of the training data that becomes the validation data, where there are none."
    text: str | int = "text"
    "A table's column of texts: its name; or its number, from 0, where there is no header."
    label: str | int = "label"
    "The column of the names of classes, likewise."
    class_names: list[str] | None = None
    "Names of the classes in the order of their numbers; else those of the training data, sorted."
    samples: int | None = Field(default=None, ge=2)
    "Take so many of the training texts only."
    tokenizer: Literal["word", "wordpiece"] = "word"
    "Words, or parts of words as BERT's."
    vocabulary: PathText | None = None
    "A tokenizer.json (of a run, say) or vocab.txt; else made of the training data, and kept."
    vocab_size: int = Field(default=40_000, ge=10)
    "The greatest number of tokens of a vocabulary that is made."
    lowercase: bool = True
    "Make letters small and take off their accents; a tokenizer.json says so itself."
    vectors: PathText | None = None
    "Vectors of words that a training starts from: a text file as GloVe's."
    max_length: int = Field(default=256, ge=8)
    "Tokens of a text that count; the rest is cut off."
    batch_size: int = Field(default=64, ge=1)
    "Texts in a batch."


class ModelConfig(Network):
    """The network and its loss."""

    network: Name = "seq2label_cnn"
    "seq2label_basic (LSTM), seq2label_cnn, bert, or module:function."
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    "Share of the target that goes to all classes alike."


class TextClassificationConfig(AppConfig):
    """A recipe of text classification."""

    task: str = "text_classification"
    "The application."
    data: DataConfig = DataConfig()
    "Texts and labels."
    model: ModelConfig = ModelConfig()
    "The network and its loss."
