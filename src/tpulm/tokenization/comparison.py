"""Compare tokenizers on the same text: unknown tokens, numbers of tokens, speed, and overlap of vocabularies.

Users name tokenizers as NAME=PATH:SETTINGS, of which only PATH is required. A vocab.txt does not say how text is normalized, so
its settings are given here: "bert/vocab.txt:uncased".
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from tpulm import corpus, storage
from tpulm.config import SourceConfig, TokenizerConfig
from tpulm.corpus.paths import find_paths
from tpulm.errors import ConfigError, DataError, suggest
from tpulm.progress import SILENT, Progress
from tpulm.readable import size, visible
from tpulm.runtime import interrupt
from tpulm.tokenization.causal import GPT2_VOCABULARY, load_causal
from tpulm.tokenization.contrasts import Contrast, Contrasts, Form, forms
from tpulm.tokenization.files import TOKENIZER, load
from tpulm.tokenization.pipelines import without_surrogates
from tpulm.tokenization.report import Fit, TextTally, TokenTally
from tpulm.tokenization.tokenization import Tokenization

PERCENTILES = (5, 25, 50, 75, 95, 99)
_USUAL_LENGTHS = (128, 512)  # sequence lengths of BERT's two phases
_SPEED_BYTES = 2_000_000
LONGEST_DOCUMENT = 1 << 20  # characters; the rest is left out, to bound memory
_SLICE_BYTES = 1 << 17  # of text yielded at a time


@dataclass(frozen=True)
class Overlap:
    """Overlap of the forms A and B of two vocabularies: `both` is |A∩B|, `share` |A∩B| / |A|, `jaccard` |A∩B| / |A∪B|."""

    both: int
    share: float
    jaccard: float


@dataclass(frozen=True)
class Lengths:
    """Lengths of the documents in tokens."""

    percentiles: dict[str, int]  # "5" to "99", and "max"
    share_over: dict[int, float]  # length -> share of longer documents


@dataclass(frozen=True, kw_only=True)
class Measured(Fit):
    """One tokenizer on the text of the comparison. The scripts are in the same order for all."""

    source: str
    algorithm: str
    fingerprint: str
    megabytes_per_second: Speed
    lengths: Lengths
    length_curve: Sequence[tuple[int, float]]  # (length, share of the documents of at most this length)


@dataclass(frozen=True)
class Comparison:
    """Words are separated by blanks, which do not count as characters. Tokenizers are named by their labels."""

    sample: str  # which text was read
    is_whole: bool  # whether that is all of the corpus
    documents: int
    words: int
    characters: int
    text_bytes: int
    speed_bytes: int  # how many of these speed was measured on
    tokenizers: Mapping[str, Measured]
    overlaps: Mapping[str, Mapping[str, Overlap]]  # [A][B]
    contrasts: Sequence[Contrast]

    @property
    def summary(self) -> str:
        return f"On {self.sample}: {self.documents:,} documents, {self.words:,} words, {self.characters:,} characters."

    def as_json(self) -> dict[str, Any]:
        """The comparison for json.dumps."""
        value = asdict(self)
        for one in value["tokenizers"].values():
            del one["length_curve"]
        for one in value["contrasts"]:
            one["best" if one.pop("best") else "worst"] = one.pop("tokenizer")
            one["tokens"] = {label: [piece.token for piece in pieces] for label, pieces in one.pop("pieces").items()}
        return value


def compare(
    candidates: Sequence[Candidate],
    sample: TextSample,
    *,
    sequence_length: int | None = None,
    contrasts: int = 6,
    repetitions: int = 3,
    speed_bytes: int = _SPEED_BYTES,
    progress: Progress = SILENT,
) -> Comparison:
    """Read the sample once and encode it with all candidates. Memory grows only with distinct lengths and unknown words.

    `contrasts`: how many passages to show on which they differ; `repetitions`: how often to measure speed. Raises DataError if
    there is no text.
    """
    tokenizations = {one.label: one.tokenization for one in candidates}
    texts, tallies = TextTally(), [TokenTally(made) for made in tokenizations.values()]
    kept, differing = Reservoir(speed_bytes), Contrasts(tokenizations)
    progress.start("tokenizer: compare", total=sample.expected_bytes, unit="bytes")
    for documents in sample:
        interrupt.check("nothing was written")
        before = texts.text_bytes
        for text, *tokens in zip(documents, *(tally.add(documents) for tally in tallies), strict=True):
            texts.add(text)
            differing.add(text, tokens)
        kept.add(documents)
        progress.advance(texts.text_bytes - before)
    if not texts.words:
        raise DataError("there is no text to compare on: the corpus has no document with a word in it")
    on = kept.texts()
    speeds = measure_speed([one.tokenization for one in candidates], on, repetitions=repetitions, progress=progress)
    over = sorted({*_USUAL_LENGTHS, sequence_length or _USUAL_LENGTHS[0]})
    vocabularies = {label: frozenset(forms(made).values()) for label, made in tokenizations.items()}
    return Comparison(
        sample=str(sample),
        is_whole=sample.is_whole,
        documents=texts.documents,
        words=texts.words,
        characters=texts.characters.total(),
        text_bytes=texts.text_bytes,
        speed_bytes=sum(len(text.encode()) for text in on),
        tokenizers={
            candidate.label: _measured(candidate, texts, tally, speed, over)
            for candidate, tally, speed in zip(candidates, tallies, speeds, strict=True)
        },
        overlaps={
            mine: {theirs: overlap(own, other) for theirs, other in vocabularies.items() if theirs != mine}
            for mine, own in vocabularies.items()
        },
        contrasts=differing.found(contrasts),
    )


def overlap(mine: AbstractSet[Form], theirs: AbstractSet[Form]) -> Overlap:
    both = len(mine & theirs)
    return Overlap(both, both / max(1, len(mine)), both / max(1, len(mine | theirs)))


def _measured(candidate: Candidate, texts: TextTally, tally: TokenTally, speed: Speed, over: Sequence[int]) -> Measured:
    lengths, counts = np.array(sorted(tally.lengths.items())).T
    percentiles = np.percentile(lengths, (*PERCENTILES, 100), weights=counts, method="inverted_cdf").tolist()
    share_over = {most: float(np.average(lengths > most, weights=counts)) for most in over}
    return Measured(
        **vars(tally.fit(texts)),
        source=candidate.source,
        algorithm=candidate.tokenization.algorithm,
        fingerprint=candidate.tokenization.fingerprint,
        megabytes_per_second=speed,
        lengths=Lengths(dict(zip([*map(str, PERCENTILES), "max"], percentiles, strict=True)), share_over),
        length_curve=list(zip(lengths.tolist(), (np.cumsum(counts) / texts.documents).tolist(), strict=True)),
    )


# -- the tokenizers, as the user names them --

SETTINGS: dict[str, dict[str, bool]] = {
    "lowercase": {"lowercase": True},
    "strip_accents": {"strip_accents": True},
    "uncased": {"lowercase": True, "strip_accents": True},
    "whole_cjk": {"split_cjk": False},
}
_FORM = re.compile(r"(?:(?P<name>[^=/]+)=)?(?P<path>.+?)(?::(?P<settings>[^:/]*))?", re.DOTALL)
_SAY_NOTHING = {"run", "vocab", "tokenizer", "export", "sentencepiece", "spiece", "spm", "discriminator", "generator", ""}


class Candidate(NamedTuple):
    label: str  # unique among those of a comparison
    source: str  # as the user named it
    tokenization: Tokenization


class _Named(NamedTuple):
    name: str  # "" if the user gave none
    path: PurePath
    settings: tuple[str, ...]
    given: str


def load_candidates(given: Sequence[str], *, progress: Progress = SILENT) -> list[Candidate]:
    """Load tokenizers that the user names. Raises ConfigError for invalid names, settings and duplicates, else as `load`."""
    if len(given) < 2:
        raise ConfigError(
            "a comparison needs two tokenizers or more: name another one. 'tpulm tokenizer report' looks at one alone."
        )
    named = [_parse(text) for text in given]
    names = [one.name or _short_name(one.path) for one in named]
    labels = [name if one.name or names.count(name) == 1 else one.given for one, name in zip(named, names, strict=True)]
    found = [Candidate(visible(label), one.given, _load(one, progress)) for one, label in zip(named, labels, strict=True)]
    for one, other in combinations(found, 2):
        if one.tokenization.fingerprint == other.tokenization.fingerprint:
            raise ConfigError(
                f"{one.source} and {other.source} are the same tokenizer (fingerprint {one.tokenization.fingerprint[:12]}): "
                "there is nothing to compare. Leave one of them out."
            )
        if one.label == other.label:
            raise ConfigError(f"two tokenizers are named '{one.label}': give each its own name, as in NAME=PATH")
    return found


def _parse(text: str) -> _Named:
    if text and "://" not in text and storage.exists(text):  # a path may contain = and :
        return _Named("", storage.as_path(text), (), text)
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"'{text}' names no tokenizer: write PATH, NAME=PATH or PATH:SETTING, as in bert/vocab.txt:uncased")
    settings = tuple(filter(None, re.split(r"[,\s]+", match["settings"] or "")))
    for setting in settings:
        if setting not in SETTINGS:
            raise ConfigError(
                f"'{text}': there is no setting '{setting}' for a vocab.txt.{suggest(setting, SETTINGS)} "
                f"There are {', '.join(SETTINGS)}."
            )
    return _Named((match["name"] or "").strip(), storage.as_path(match["path"]), settings, text)


def _load(one: _Named, progress: Progress) -> Tokenization:
    path = one.path / "tokenizer" if storage.is_folder(one.path / "tokenizer") else one.path  # of a work folder
    folder = storage.is_folder(path)
    if not folder and not storage.exists(path):
        find_paths(str(path))  # raises an error that says what there is instead
    says_itself = storage.exists(path / TOKENIZER) if folder else path.suffix in (".json", ".model")
    if one.settings and says_itself:
        raise ConfigError(
            f"'{one.given}': only a vocab.txt takes settings; {path} already defines how text is split. Leave out "
            f"':{','.join(one.settings)}'."
        )
    if folder and not says_itself and storage.exists(path / GPT2_VOCABULARY):
        return load_causal(path)
    config = TokenizerConfig.model_validate({name: value for key in one.settings for name, value in SETTINGS[key].items()})
    try:
        return load(path, config, progress=progress)
    except DataError:
        if not folder or not says_itself:
            raise
        return load_causal(path)  # a causal model's, without [CLS] and [MASK]


def _short_name(path: PurePath) -> str:
    """The name of the run whose work folder contains this, else the nearest descriptive name in the path."""
    for part in (path, *path.parents):
        run = storage.read_json(part / "run.json").get("name") if storage.exists(part / "run.json") else None
        for name in (run, part.stem if part.suffix in (".txt", ".json", ".model") else part.name):
            if isinstance(name, str) and name.lower() not in _SAY_NOTHING:
                return name
    return path.name


# -- the text: the beginning of every file, in proportion to its size --


class TextSample:
    """Iterate over it once for lists of non-blank documents; afterwards its attributes say what was read.

    Raises as `corpus.find_files` does for missing files, and as `corpus.read_texts` for unreadable ones.
    """

    def __init__(self, sources: Sequence[SourceConfig], max_bytes: int):
        self._max_bytes = max_bytes
        found = corpus.find_files(sources)
        sizes: dict[str, int] = {}
        for file in found:  # a large dump is split into several
            sizes[file.path] = sizes.get(file.path, 0) + file.bytes
        source_of = {file.path: sources[file.source] for file in found}
        self._files = [(source_of[path].model_copy(update={"path": path}), total) for path, total in sizes.items()]
        compressed = any(file.compression is not None for file in found)
        # Compressed files hold more text than bytes, so only the limit is known.
        self.expected_bytes = max_bytes if compressed else min(max_bytes, sum(sizes.values()))
        self.read_bytes = self.cut_documents = 0
        self.is_whole = True  # nothing was left out

    def __iter__(self) -> Iterator[list[str]]:
        left = sum(file_bytes for _, file_bytes in self._files)
        for source, file_bytes in self._files:
            share = file_bytes / left if left else 1.0
            left -= file_bytes
            yield from self._file(source, round((self._max_bytes - self.read_bytes) * share))

    def _file(self, source: SourceConfig, allowed: int) -> Iterator[list[str]]:
        """Whole documents, until they reach `allowed` bytes."""
        documents: list[str] = []
        here = gathered = 0
        batches = corpus.read_texts([source])
        for document in (document for batch in batches for document in batch if document.strip()):
            if here >= allowed:
                self.is_whole = False
                break
            if len(document) > LONGEST_DOCUMENT:
                document = document[:LONGEST_DOCUMENT]
                self.cut_documents, self.is_whole = self.cut_documents + 1, False
            document = without_surrogates(document)
            documents.append(document)
            length = len(document.encode())
            here, gathered, self.read_bytes = here + length, gathered + length, self.read_bytes + length
            if gathered >= _SLICE_BYTES:
                yield documents
                documents, gathered = [], 0
        if documents:
            yield documents

    def __str__(self) -> str:
        files = f"{len(self._files):,} files" if len(self._files) > 1 else "one file"
        if self.is_whole:
            return f"all text of {files}, {size(self.read_bytes)}"
        beginning = "the beginning of each" if len(self._files) > 1 else "its beginning"
        cut = (
            f"; of {self.cut_documents:,} documents only the first {LONGEST_DOCUMENT:,} characters"
            if self.cut_documents
            else ""
        )
        return f"{size(self.read_bytes)} of {files}: {beginning}, not a random sample{cut}"


class Reservoir:
    """A uniform sample of the slices of a stream, of about `max_bytes` in all (reservoir sampling)."""

    def __init__(self, max_bytes: int):
        self._most = max(1, max_bytes // _SLICE_BYTES)
        self._random = random.Random(0)
        self._seen = 0
        self._kept: list[list[str]] = []

    def add(self, documents: list[str]) -> None:
        self._seen += 1
        if len(self._kept) < self._most:
            self._kept.append(documents)
        elif (place := self._random.randrange(self._seen)) < self._most:
            self._kept[place] = documents

    def texts(self) -> list[str]:
        return [text for documents in self._kept for text in documents]


# -- speed --


@dataclass(frozen=True)
class Speed:
    """Megabytes of UTF-8 per second, each the median of all repetitions.

    `bulk` is `Tokenization.encode`, `library` the tokenizers library's `encode_batch_fast`; neither has seen text before.
    """

    bulk: float
    library: float


def measure_speed(
    tokenizations: Sequence[Tokenization], texts: list[str], *, repetitions: int = 5, progress: Progress = SILENT
) -> list[Speed]:
    """Measure in turns, so that other load on the machine affects all alike; building a tokenizer is not counted."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    seconds: list[tuple[list[float], list[float]]] = [([], []) for _ in tokenizations]
    progress.start("tokenizer: speed", total=repetitions * len(tokenizations), unit="measurements")
    for repetition in range(repetitions):
        for number in range(len(tokenizations)):
            interrupt.check()
            chosen = (number + repetition) % len(tokenizations)
            made = tokenizations[chosen]
            bulk, library = seconds[chosen]
            bulk.append(_seconds(_new_bulk(made), texts))
            library.append(_seconds(_new_library(made), texts))
            progress.advance(1)
    return [Speed(megabytes / statistics.median(bulk), megabytes / statistics.median(library)) for bulk, library in seconds]


def _new_bulk(made: Tokenization) -> Callable[[list[str]], object]:
    new = Tokenization(Tokenizer.from_str(made.canonical_json), made.special)
    new.encode([])  # builds the encoder, which takes longer than encoding a short text
    return new.encode


def _new_library(made: Tokenization) -> Callable[[list[str]], object]:
    new = made.plain()
    return lambda texts: new.encode_batch_fast(texts, add_special_tokens=False)


def _seconds(encode: Callable[[list[str]], object], texts: list[str]) -> float:
    began = time.perf_counter()
    encode(texts)
    return max(time.perf_counter() - began, 1e-9)
