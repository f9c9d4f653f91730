from typing import Literal

from pydantic import Field

from towerpack.apps._config import AppConfig, Data, Network
from towerpack.config import Name, PathText


class DataConfig(Data):
    """Settings for reading labeled texts and forming batches."""

    inputter: Name = "table"
    "table (CSV, TSV), lines, folder (one file per text, as for IMDB), or module:name."
    validation: float = Field(default=0.1, gt=0, lt=1)
    text: str | int = "text"
    "Column of the texts in a table: its name, or its number from 0 if there is no header."
    label: str | int = "label"
    "Column of the class names, in the same form."
    class_names: list[str] | None = None
    "Names of the classes in the order of their labels; null: the sorted names in training data."
    samples: int | None = Field(default=None, ge=2)
    "Train only on this many texts."
    tokenizer: Literal["word", "wordpiece"] = "word"
    "Kind of tokens: words, or BERT's parts of words."
    vocabulary: PathText | None = None
    "A tokenizer.json, for example of a run, or vocab.txt; null: created from the training data."
    vocab_size: int = Field(default=40_000, ge=10)
    "Largest number of tokens in a created vocabulary."
    lowercase: bool = True
    "Convert to lower case and remove accents; a tokenizer.json has its own setting."
    vectors: PathText | None = None
    "Initial word vectors: a text file in GloVe's format."
    max_length: int = Field(default=256, ge=8)
    "Largest number of tokens in a text; longer texts are cut off."
    batch_size: int = Field(default=64, ge=1)


class ModelConfig(Network):
    """Settings of the network and its loss."""

    network: Name = "seq2label_cnn"
    "seq2label_basic (LSTM), seq2label_cnn, bert, or module:function."
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    "Share of the target that is spread evenly over all classes."


class TextClassificationConfig(AppConfig):
    """Recipe of text classification."""

    task: str = "text_classification"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
