"""Vocabularies, word vectors, and text sources of inference."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack._core.files import replace_file
from towerpack._core.logs import get_logger
from towerpack._core.randomness import stream
from towerpack._core.tables import lines_of, read_text
from towerpack.dataflow.sources.discovery import NO_TEXT, TEXT_EXTENSIONS, Discovery, is_text

Kind = Literal["word", "wordpiece", "char", "spaced"]
PAD, UNKNOWN, BEGIN, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
VOCABULARY: Final = "tokenizer.json"  # vocabulary file in a run directory
PIECES: Final[Mapping[str, str]] = {"char": r"[\s\S]", "spaced": r" ?[\p{L}\p{M}\p{N}']+|[\s\S]"}
"""Regular expressions of tokens, for the kinds of vocabularies that preserve the whole text."""
_CHUNK: Final = 1000
# All code points except surrogates and planes 4 to 13, which contain no characters.
_CODES: Final = (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0x110000))
_RULES: Final = ("normalizer", "pre_tokenizer", "model")
_LOG = get_logger(__name__)


class Vocabulary:
    """Tokens and their ids, based on a `tokenizers.Tokenizer` of Hugging Face.

    Id 0 is `[PAD]`, and unknown tokens are `[UNK]`. Words are split as for BERT (Devlin et al.
    2018, `BasicTokenizer`). `ends` are the ids of `[CLS]` and `[SEP]`, or None without these.
    """

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # treat `[CLS]` in a text as plain text
        self.tokenizer = tokenizer
        numbers: Mapping[str, int] = tokenizer.get_vocab()
        self.tokens = sorted(numbers, key=lambda token: numbers[token])
        around = tokenizer.encode("").ids
        self.ends = (around[0], around[-1]) if around else None

    @classmethod
    def train(
        cls, texts: Iterable[str], kind: Kind, size: int, *, lowercase: bool = True
    ) -> Vocabulary:
        """Create a vocabulary of the most frequent tokens of texts. The order does not matter.

        'word' and 'wordpiece' (parts of words, Schuster & Nakajima 2012) may be converted to lower
        case without accents. 'char' and 'spaced' (words with the preceding space, and single other
        characters) preserve the whole text.
        """
        trainers = _tokenizers().trainers
        tokenizer, specials = _tokenizer_of(kind, lowercase), _specials(kind)
        make = trainers.WordLevelTrainer
        if kind == "wordpiece":
            # Sort the characters, because the library's order is random.
            texts = list(texts)
            normalize = tokenizer.normalizer.normalize_str
            every = sorted({c for text in texts for c in normalize(text) if not c.isspace()})
            specials, make = [*specials, *(f"##{c}" for c in every)], trainers.WordPieceTrainer
        trainer = make(vocab_size=size, special_tokens=specials, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        return cls(_tokenizer_with(cls(tokenizer).tokens, kind, lowercase))

    @classmethod
    def read(cls, path: Path, kind: Kind = "word", *, lowercase: bool = True) -> Vocabulary:
        """Read a `tokenizer.json`, or a file with one token per line like BERT's `vocab.txt`.

        `kind` and `lowercase` apply only to files with one token per line.
        """
        written = read_text(path)
        if path.suffix == ".json":
            try:
                vocabulary = cls(_tokenizers().Tokenizer.from_str(written))
            except Exception as error:  # The library raises only this class.
                raise FormatError(f"{path} is not a valid tokenizer.json: {error}.") from error
        else:
            listed = lines_of(written)
            needed = _specials(kind)[:-1] if kind == "wordpiece" else _specials(kind)
            if len(set(listed)) < len(listed) or not set(needed) <= set(listed):
                raise FormatError(
                    f"The vocabulary {path} of kind '{kind}' must list unique tokens and all "
                    "special tokens.",
                    got=f"{len(listed)} lines, {len(set(listed))} different ones",
                    expected=f"one token per line without duplicates, including {' '.join(needed)}",
                )
            vocabulary = cls(_tokenizer_with(listed, kind, lowercase))
        if vocabulary.tokens[0] != PAD or UNKNOWN not in vocabulary.tokens:
            raise FormatError(
                f"The vocabulary {path} must begin with {PAD} and contain {UNKNOWN}.",
                got=f"first token {vocabulary.tokens[0]!r}",
            )
        return vocabulary

    def write(self, path: Path) -> None:
        replace_file(path, self.tokenizer.to_str(pretty=True).encode())

    def ids(self, text: str) -> NDArray[np.int32]:
        """Return the token ids of a text, without `[CLS]` and `[SEP]`."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def text(self, ids: Iterable[int]) -> str:
        """Convert token ids to text, as far as the tokens preserve the text."""
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def encoded(
        self, texts: Sequence[str], length: int
    ) -> tuple[list[NDArray[np.int32]], int, int]:
        """Return at most `length` ids per text, and how many texts were truncated or empty."""
        encoded: list[NDArray[np.int32]] = []
        cut = empty = 0
        for start in range(0, len(texts), _CHUNK):
            some = list(texts[start : start + _CHUNK])
            for encoding in self.tokenizer.encode_batch_fast(some):
                ids = encoding.ids
                cut += len(ids) > length
                empty += len(ids) <= 2 * (self.ends is not None)
                if len(ids) > length and self.ends:
                    ids[length - 1] = ids[-1]
                encoded.append(np.array(ids[:length], np.int32))
        return encoded, cut, empty

    @property
    def rules(self) -> Literal["word", "wordpiece"] | None:
        """Kind of tokenizer in `towerpack.ops.text` with the same rules; None if there is none."""
        settings = json.loads(self.tokenizer.to_str())
        kinds = tuple((settings[part] or {}).get("type") for part in _RULES)
        return {
            ("BertNormalizer", "BertPreTokenizer", "WordLevel"): "word",
            ("BertNormalizer", "BertPreTokenizer", "WordPiece"): "wordpiece",
        }.get(kinds)  # type: ignore[return-value]

    @cached_property
    def characters(self) -> dict[str, str]:
        """Replacements of characters, after which spaces separate words.

        They describe the tokenizer completely, because its rules see one character at a time.
        """
        normalize = self.tokenizer.normalizer.normalize_str
        every = list(map(chr, _CODES))
        results = {c: normalize(c) for c in every}
        # Put characters between digits, which are not split from letters.
        blocks = (every[i : i + _CHUNK] for i in range(0, len(every), _CHUNK))
        rule = self.tokenizer.pre_tokenizer.pre_tokenize_str
        pieces = {piece for some in blocks for piece, _ in rule("0" + "0".join(some) + "0")} - {"0"}
        inside = set("".join(pieces))
        spelled = {c: " " if c not in inside else f" {c} " if c in pieces else c for c in every}
        new = {c: "".join(map(spelled.__getitem__, result)) for c, result in results.items()}
        return {c: result for c, result in new.items() if result != c}

    def operations(self, length: int) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        """Return lookup tables, and a TensorFlow function that tokenizes like `encoded`.

        The function maps strings [n] to int32 [n, longest]. Only tokenizers with `rules` have it.
        """
        from towerpack.ops import text as ops

        characters, tokens = ops.character_table(self.characters), ops.token_table(self.tokens)
        longest = max(map(len, self.tokens))

        def numbers_of(text: Any) -> Any:
            words = ops.words_of(text, characters)
            if self.rules == "wordpiece":
                return ops.padded(ops.word_pieces(words, tokens, longest), length, self.ends)
            return ops.padded(ops.numbers_of(words, tokens), length, self.ends)

        return (characters, tokens), numbers_of

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.tokens == other.tokens

    __hash__ = None  # type: ignore[assignment]


def _tokenizers() -> Any:
    return require("tokenizers", extra="apps", needed_for="Texts")


def _specials(kind: Kind) -> list[str]:
    if kind in PIECES:
        return [PAD, UNKNOWN, BEGIN]
    return [PAD, UNKNOWN, BEGIN, END, MASK] if kind == "wordpiece" else [PAD, UNKNOWN]


def _tokenizer_of(kind: Kind, lowercase: bool, tokens: Mapping[str, int] | None = None) -> Any:
    tokenizers = _tokenizers()
    models, pre = tokenizers.models, tokenizers.pre_tokenizers
    model = models.WordPiece if kind == "wordpiece" else models.WordLevel
    tokenizer = tokenizers.Tokenizer(model(dict(tokens or {}), unk_token=UNKNOWN))
    if kind in PIECES:
        tokenizer.pre_tokenizer = pre.Split(tokenizers.Regex(PIECES[kind]), "isolated")
        tokenizer.decoder = tokenizers.decoders.Fuse()
    else:
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre.BertPreTokenizer()
    if kind == "wordpiece":
        tokenizer.decoder = tokenizers.decoders.WordPiece()
    return tokenizer


def _tokenizer_with(tokens: Sequence[str], kind: Kind, lowercase: bool) -> Any:
    tokenizer = _tokenizer_of(kind, lowercase, {token: i for i, token in enumerate(tokens)})
    if kind == "wordpiece":
        tokenizer.post_processor = _tokenizers().processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}",
            special_tokens=[(end, tokenizer.token_to_id(end)) for end in (BEGIN, END)],
        )
    return tokenizer


def read_vectors(path: Path, tokens: Sequence[str], *, seed: int = 0) -> NDArray[np.float32]:
    """Read word vectors, float32 [tokens, size], from a text file in GloVe's format.

    Missing tokens get random vectors with the same mean and standard deviation. `[PAD]` gets
    zeros (Pennington et al. 2014).
    """
    wanted = {token: i for i, token in enumerate(tokens)}
    vectors: dict[int, NDArray[np.float32]] = {}
    size = number = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                word, *values = line.rstrip("\n").split(" ")
                if number == 1 and len(values) == 1:
                    continue  # header of word2vec: number of words, number of values
                size = size or len(values)
                if len(values) != size:
                    raise ValueError(f"{len(values)} values instead of {size}")
                if word in wanted:
                    vectors[wanted[word]] = np.array(values, np.float32)
    except OSError as error:
        raise ConfigError(f"The vectors {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FormatError(f"{path}, line {number}: {error}.") from error
    if not vectors:
        raise ConfigError(
            f"{path} must have vectors for some of the {len(tokens)} tokens, but has none."
        )
    known = np.stack(list(vectors.values()))
    rng = stream(seed, "vectors of words")
    matrix = rng.normal(known.mean(), known.std(), [len(tokens), size]).astype(np.float32)
    matrix[list(vectors)] = known
    matrix[0] = 0
    _LOG.info("%d of %d tokens have a vector in %s.", len(vectors), len(tokens), path)
    return matrix


class _Unread(str):
    error: FormatError


def text_sources(sources: Sequence[str], encoding: str | None = None) -> list[str]:
    """Return texts for inference: the sources themselves, or lines of files or of `-` (stdin).

    A path with a separator may be a folder. `text_of` raises the errors of files that cannot be
    decoded.
    """
    texts: list[str] = []
    for source in sources:
        path = Path(source)
        is_file, is_folder = os.path.isfile(source), os.sep in source and os.path.isdir(source)
        if source == "-":
            texts += lines_of(sys.stdin.read().removeprefix("\ufeff"))
        elif is_folder:
            discovery = Discovery(is_text, NO_TEXT)
            texts += text_sources(list(discovery.files(path)), encoding)
            discovery.report(path)
        elif is_file:
            try:
                texts += lines_of(read_text(path, encoding))
            except FormatError as error:
                unread = _Unread(source)
                unread.error = error
                texts.append(unread)
        elif path.suffix.lower() in TEXT_EXTENSIONS and not any(map(str.isspace, source)):
            raise ConfigError(
                f"The file {source!r} does not exist.", expected="an existing file, or a text"
            )
        else:
            texts.append(source)
    return texts


def text_of(source: Any, *, empty: bool = False) -> str:
    """Return a text from `text_sources`. Raise FormatError if it is undecodable or empty."""
    if isinstance(source, _Unread):
        raise source.error
    if not empty and not str(source).strip():
        raise FormatError("The text must not be empty.")
    return str(source)
