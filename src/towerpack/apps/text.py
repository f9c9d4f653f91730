"""Vocabularies of texts, vectors of words, and the texts that a user names for inference."""

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
VOCABULARY: Final = "tokenizer.json"
"""The vocabulary's name in a run."""
PIECES: Final[Mapping[str, str]] = {
    "char": r"[\s\S]",
    "spaced": r" ?[\p{L}\p{M}\p{N}']+|[\s\S]",
}
"""Expressions for the tokens of kinds of which nothing of a text is lost."""
_AT_ONCE: Final = 1000
# Without surrogates, and without planes 4 to 13, which have no characters.
_CODES: Final = (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0x110000))
_RULES: Final = ("normalizer", "pre_tokenizer", "model")
_LOG = get_logger(__name__)


class Vocabulary:
    """Tokens and their numbers, by a `tokenizers.Tokenizer` of Hugging Face.

    0 is `[PAD]`; unknown tokens are `[UNK]`. Words are split as BERT's are: letters and digits
    between spaces, each punctuation mark by itself, without accents if `lowercase` is set (Devlin
    et al. 2018, `BasicTokenizer`).

    Attributes:
        tokenizer: The given tokenizer.
        tokens: In the order of their numbers.
        ends: Numbers of `[CLS]` and `[SEP]`, with which texts begin and end; None for none.
    """

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # What a text says is no command.
        self.tokenizer = tokenizer
        numbers: Mapping[str, int] = tokenizer.get_vocab()
        self.tokens = sorted(numbers, key=lambda token: numbers[token])
        around = tokenizer.encode("").ids
        self.ends = (around[0], around[-1]) if around else None

    @classmethod
    def train(
        cls, texts: Iterable[str], kind: Kind, size: int, *, lowercase: bool = True
    ) -> Vocabulary:
        """Create a vocabulary of the most frequent tokens of texts, in any order.

        Args:
            texts: Texts.
            kind: 'word'; 'wordpiece' (parts of words, Schuster & Nakajima 2012); or a kind that
                loses nothing of a text: 'char'; 'spaced' (words with the space before them, and
                all other characters).
            size: Largest number of tokens.
            lowercase: Use lower case without accents; for 'word' and 'wordpiece'.
        """
        trainers = _tokenizers().trainers
        tokenizer, specials = _of_kind(kind, lowercase), _specials(kind)
        make = trainers.WordLevelTrainer
        if kind == "wordpiece":
            # In an order of our own: the library's differs from call to call.
            texts = list(texts)
            normalize = tokenizer.normalizer.normalize_str
            every = sorted({c for text in texts for c in normalize(text) if not c.isspace()})
            specials, make = [*specials, *(f"##{c}" for c in every)], trainers.WordPieceTrainer
        trainer = make(vocab_size=size, special_tokens=specials, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        return cls(_of_tokens(cls(tokenizer).tokens, kind, lowercase))

    @classmethod
    def read(cls, path: Path, kind: Kind = "word", *, lowercase: bool = True) -> Vocabulary:
        """Read a `tokenizer.json`, or one token per line as in BERT's `vocab.txt`.

        `kind` and `lowercase` are for the latter.

        Raises:
            ConfigError: There is no such file.
            FormatError: The file is not a vocabulary, or its first token is not `[PAD]`.
        """
        written = read_text(path)
        if path.suffix == ".json":
            try:
                found = cls(_tokenizers().Tokenizer.from_str(written))
            except Exception as error:  # The library's only class of errors.
                raise FormatError(f"{path} is no tokenizer: {error}.") from error
        else:
            listed = lines_of(written)
            needed = _specials(kind)[:-1] if kind == "wordpiece" else _specials(kind)
            if len(set(listed)) < len(listed) or not set(needed) <= set(listed):
                raise FormatError(
                    f"{path} is no vocabulary of kind '{kind}'.",
                    got=f"{len(listed)} lines, {len(set(listed))} different ones",
                    expected=f"one token a line, none twice, {' '.join(needed)} among them",
                )
            found = cls(_of_tokens(listed, kind, lowercase))
        if found.tokens[0] != PAD or UNKNOWN not in found.tokens:
            raise FormatError(
                f"{path} is no vocabulary of ours.",
                got=f"first token {found.tokens[0]!r}",
                expected=f"{PAD} first, and {UNKNOWN}",
            )
        return found

    def write(self, path: Path) -> None:
        """Write a `tokenizer.json`."""
        replace_file(path, self.tokenizer.to_str(pretty=True).encode())

    def ids(self, text: str) -> NDArray[np.int32]:
        """Return the numbers of a text's tokens, without `[CLS]` and `[SEP]`."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def text(self, ids: Iterable[int]) -> str:
        """The text of tokens, as far as they say what it was."""
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def encoded(
        self, texts: Sequence[str], length: int
    ) -> tuple[list[NDArray[np.int32]], int, int]:
        """Return numbers of at most `length` tokens per text, `[CLS]` and `[SEP]` included.

        Returns:
            The numbers of each text, the number of cut texts, the number of texts without tokens.
        """
        found: list[NDArray[np.int32]] = []
        cut = empty = 0
        for start in range(0, len(texts), _AT_ONCE):
            some = list(texts[start : start + _AT_ONCE])
            for encoding in self.tokenizer.encode_batch_fast(some):
                ids = encoding.ids
                cut += len(ids) > length
                empty += len(ids) <= 2 * (self.ends is not None)
                if len(ids) > length and self.ends:
                    ids[length - 1] = ids[-1]
                found.append(np.array(ids[:length], np.int32))
        return found, cut, empty

    @property
    def rules(self) -> Literal["word", "wordpiece"] | None:
        """Kind of tokenizer in `towerpack.ops.text` with the same rules; None if there is none."""
        told = json.loads(self.tokenizer.to_str())
        kinds = tuple((told[part] or {}).get("type") for part in _RULES)
        return {
            ("BertNormalizer", "BertPreTokenizer", "WordLevel"): "word",
            ("BertNormalizer", "BertPreTokenizer", "WordPiece"): "wordpiece",
        }.get(kinds)  # type: ignore[return-value]

    @cached_property
    def characters(self) -> dict[str, str]:
        """Replacements of characters before words are looked up: spaces divide words.

        They describe a tokenizer of words completely, whose rules see one character at a time.
        """
        normalize = self.tokenizer.normalizer.normalize_str
        every = list(map(chr, _CODES))
        results = {c: normalize(c) for c in every}
        # Between digits, which divide nothing.
        blocks = (every[i : i + _AT_ONCE] for i in range(0, len(every), _AT_ONCE))
        rule = self.tokenizer.pre_tokenizer.pre_tokenize_str
        pieces = {piece for some in blocks for piece, _ in rule("0" + "0".join(some) + "0")} - {"0"}
        inside = set("".join(pieces))
        spelled = {c: " " if c not in inside else f" {c} " if c in pieces else c for c in every}
        new = {c: "".join(map(spelled.__getitem__, result)) for c, result in results.items()}
        return {c: result for c, result in new.items() if result != c}

    def operations(self, length: int) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        """Return `encoded` as TensorFlow operations, for tokenizers that have `rules`.

        Returns:
            Lookup tables to save with a model; a function from strings [n] to int32 [n, longest].
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


def _of_kind(kind: Kind, lowercase: bool, tokens: Mapping[str, int] | None = None) -> Any:
    tokenizers = _tokenizers()
    models, pre = tokenizers.models, tokenizers.pre_tokenizers
    model = models.WordPiece if kind == "wordpiece" else models.WordLevel
    made = tokenizers.Tokenizer(model(dict(tokens or {}), unk_token=UNKNOWN))
    if kind in PIECES:
        made.pre_tokenizer = pre.Split(tokenizers.Regex(PIECES[kind]), "isolated")
        made.decoder = tokenizers.decoders.Fuse()
    else:
        made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
        made.pre_tokenizer = pre.BertPreTokenizer()
    if kind == "wordpiece":
        made.decoder = tokenizers.decoders.WordPiece()
    return made


def _of_tokens(tokens: Sequence[str], kind: Kind, lowercase: bool) -> Any:
    made = _of_kind(kind, lowercase, {token: i for i, token in enumerate(tokens)})
    if kind == "wordpiece":
        made.post_processor = _tokenizers().processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}",
            special_tokens=[(end, made.token_to_id(end)) for end in (BEGIN, END)],
        )
    return made


def read_vectors(path: Path, tokens: Sequence[str], *, seed: int = 0) -> NDArray[np.float32]:
    """Read vectors of words, float32 [tokens, size], from a text file as GloVe's.

    Each line is a word and its numbers (Pennington et al. 2014). Tokens that the file lacks get
    random vectors of the mean and deviation of the others; `[PAD]` gets zeros.

    Raises:
        ConfigError: There is no such file, or it has none of the tokens.
        FormatError: A line has another number of values.
    """
    wanted = {token: i for i, token in enumerate(tokens)}
    found: dict[int, NDArray[np.float32]] = {}
    size = number = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                word, *values = line.rstrip("\n").split(" ")
                if number == 1 and len(values) == 1:
                    continue  # word2vec's header: how many words, how many numbers.
                size = size or len(values)
                if len(values) != size:
                    raise FormatError(
                        f"{path}, line {number}: {len(values)} numbers.", expected=f"{size}"
                    )
                if word in wanted:
                    found[wanted[word]] = np.array(values, np.float32)
    except OSError as error:
        raise ConfigError(f"The vectors {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FormatError(f"{path}, line {number}: {error}.") from error
    if not found:
        raise ConfigError(f"{path} has a vector for none of the {len(tokens)} tokens.")
    known = np.stack(list(found.values()))
    rng = stream(seed, "vectors of words")
    made = rng.normal(known.mean(), known.std(), [len(tokens), size]).astype(np.float32)
    made[list(found)] = known
    made[0] = 0
    _LOG.info("%d of %d tokens have a vector in %s.", len(found), len(tokens), path)
    return made


class _Unread(str):
    """Name of a file of texts that cannot be decoded."""

    error: FormatError


def text_sources(given: Sequence[str], encoding: str | None = None) -> list[str]:
    """Return texts for inference: the given ones, lines of files, of standard input for `-`.

    A path with a separator may name a folder of texts. For a file in another `encoding` (see
    `read_text`), `text_of` raises the error.

    Raises:
        ConfigError: A source has the name of a text file that does not exist.
    """
    found: list[str] = []
    for source in given:
        path = Path(source)
        is_file, is_folder = os.path.isfile(source), os.sep in source and os.path.isdir(source)
        if source == "-":
            found += lines_of(sys.stdin.read().removeprefix("\ufeff"))
        elif is_folder:
            discovery = Discovery(is_text, NO_TEXT)
            found += text_sources(list(discovery.files(path)), encoding)
            discovery.report(path)
        elif is_file:
            try:
                found += lines_of(read_text(path, encoding))
            except FormatError as error:
                unread = _Unread(source)
                unread.error = error
                found.append(unread)
        elif path.suffix.lower() in TEXT_EXTENSIONS and not any(map(str.isspace, source)):
            raise ConfigError(f"There is no file {source!r}.", expected="a file, or a text")
        else:
            found.append(source)
    return found


def text_of(source: Any, *, empty: bool = False) -> str:
    """Return a text of `text_sources`.

    Raises:
        FormatError: Its file could not be decoded; or, unless `empty`, it is empty.
    """
    if isinstance(source, _Unread):
        raise source.error
    if not empty and not str(source).strip():
        raise FormatError("The text is empty.")
    return str(source)
