"""Minimal pairs: how often a model finds the acceptable one of two sentences likelier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from tpulm.convert.huggingface import LoadedModel
from tpulm.corpus.paths import find_paths
from tpulm.corpus.readers.lines import ByteStream, find_codec, read_lines, suffixes
from tpulm.errors import DataError, brief
from tpulm.labelled.records import BENCH_WORDING, Row, new_faults, read_file, record_file
from tpulm.predict.scores import sentence_scores
from tpulm.progress import SILENT, Progress
from tpulm.storage.paths import printable

# Columns by the names that files have, BLiMP's first; then JBLiMP's, and what people write by hand.
_GOOD: Final = ("sentence_good", "good_sentence", "good", "acceptable", "grammatical")
_BAD: Final = ("sentence_bad", "bad_sentence", "bad", "unacceptable", "ungrammatical")
_PARADIGM: Final = ("UID", "paradigm")
_CATEGORY: Final = ("linguistics_term", "phenomenon", "type", "category")


class Benchmark(NamedTuple):
    name: str
    paradigms: int
    published: dict[str, float]  # accuracies in percent on the whole set, by system


# By one paradigm of each. BLiMP's are of models that saw ten million words (READMEs of babylm/evaluation-pipeline-2023, whose
# scores are means of twelve categories, -2025 and babylm-eval, 2026); Zorro's as its authors give them, who score without
# masks; JBLiMP's are of Someya and Oseki 2023 (aclanthology.org/2023.findings-eacl.117).
BENCHMARKS: Final = {
    "adjunct_island": Benchmark(
        "BLiMP",
        67,
        {
            "GPT-BERT, BabyLM 2025": 71.3,
            "RoBERTa-base, BabyLM 2023": 69.5,
            "GPT-2, BabyLM 2026": 65.1,
            "OPT-125M, BabyLM 2023": 62.6,
        },
    ),
    "island-effects-adjunct_island": Benchmark("Zorro", 23, {"RoBERTa-base": 82.6, "BabyBERTa": 80.3}),
    "complex NP island": Benchmark("JBLiMP", 37, {"people": 90.9, "GPT-2": 78.0, "LSTM": 75.7, "5-gram": 74.0}),
}


class MinimalPair(NamedTuple):
    good: str
    bad: str
    paradigm: str  # the file's name where it names none
    category: str  # "" where there are none
    place: str = ""  # its file and line


class Tally(NamedTuple):
    """`right` of the `pairs` have a likelier good sentence; in `ties` both are exactly as likely, which is not right."""

    pairs: int
    right: int
    ties: int

    @property
    def accuracy(self) -> float:
        return self.right / self.pairs


class PairsReport(NamedTuple):
    by_paradigm: dict[str, Tally]
    by_category: dict[str, Tally]
    total: Tally
    method: str  # how sentences were scored
    benchmark: Benchmark | None  # None: pairs of one's own

    def name(self, folder: str) -> str:
        """What was scored: the benchmark, a part of it, or pairs of one's own in `folder`."""
        if self.benchmark is None:
            return folder
        name, whole, found = self.benchmark.name, self.benchmark.paradigms, len(self.by_paradigm)
        return name if found == whole else f"{found} of {whole} paradigms of {name}"

    @property
    def published(self) -> dict[str, float]:
        """The benchmark's published accuracies; none beside a part of its paradigms, whose mean is another."""
        if self.benchmark is None or len(self.by_paradigm) != self.benchmark.paradigms:
            return {}
        return self.benchmark.published

    @property
    def accuracy(self) -> float:
        """The mean over paradigms, as BLiMP's and Zorro's scores are given."""
        return sum(tally.accuracy for tally in self.by_paradigm.values()) / len(self.by_paradigm)

    def values(self) -> dict[str, Any]:
        parts = {"by_paradigm": self.by_paradigm, "by_category": self.by_category}
        tallies = {
            name: {key: {**one._asdict(), "accuracy": one.accuracy} for key, one in part.items()}
            for name, part in parts.items()
        }
        return {
            "accuracy": self.accuracy,
            "method": self.method,
            **self.total._asdict(),
            **tallies,
            "published": self.published,
        }


def read_pairs(
    path: PurePath, encoding: str = "utf-8", note: Callable[[str], None] = lambda message: None
) -> list[MinimalPair]:
    """The pairs of a file, a glob, or all files of a folder but those about the data (README.md), of which there is a `note`.

    jsonl, tsv, csv and Parquet have a column with the good and one with the bad sentence, perhaps others with the paradigm and
    its category (BLiMP, JBLiMP). In Zorro's text files (.txt) a bad line is followed by its good one. Raises ConfigError if
    there is no such file, DataError with the place.
    """
    paths = list(find_paths(str(path), note))
    texts = [one for one in paths if suffixes(one)[0] == ".txt"]
    if texts and len(texts) < len(paths):
        other = next(one for one in paths if one not in texts)
        raise DataError(
            f"{texts[0]} has lines and {PurePath(other).name} has rows: name one kind of files, such as '{path}/*.jsonl'",
            location=str(path),
        )
    pairs, files = list[MinimalPair](), dict[MinimalPair, str]()
    for one, name in zip(paths, _names(paths), strict=True):
        if texts:
            found = list(_read_lines(one, name, encoding))
        else:
            file = record_file(one, wording=BENCH_WORDING)
            rows = read_file(file, on_error="stop", skipped=Counter(), encoding=encoding, wording=BENCH_WORDING)
            found = [_pair(row, name) for row in rows]
        if not found:
            raise DataError("no pairs of sentences in it; remove the file, or name the others", location=one)
        for pair in found:
            if (other := files.setdefault(pair._replace(place=""), one)) != one:
                twice = f"{printable(other)} and {PurePath(one).name} have the same pair of {pair.good!r} and {pair.bad!r}"
                raise DataError(f"{twice}: name one of them, or a glob that leaves the copy out", location=str(path))
        pairs += found
    return pairs


def _names(paths: Sequence[str]) -> list[str]:
    """Of each file its name without suffixes; where two would have one name, with its folder, or else as it is."""
    files = [PurePath(one) for one in paths]
    stems = [(one.with_suffix("") if suffixes(str(one))[1] else one).stem for one in files]
    within = [f"{one.parent.name}/{stem}" for one, stem in zip(files, stems, strict=True)]
    several, again = Counter(stems), Counter(within)
    return [
        stem if several[stem] == 1 else name if again[name] == 1 else str(one)
        for one, stem, name in zip(files, stems, within, strict=True)
    ]


def _read_lines(path: str, name: str, encoding: str) -> Iterator[MinimalPair]:
    faults = new_faults("stop", path, BENCH_WORDING)
    chunks = read_lines(ByteStream(path, suffixes(path)[1], faults), find_codec(encoding), faults)
    lines = [line for chunk in chunks for line in chunk.split()]
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(
                "a blank line, where a bad sentence and its good one take turns; remove it", location=f"{path}, line {number}"
            )
    if len(lines) % 2:
        raise DataError(
            f"{len(lines)} lines, which are no pairs: a bad sentence and, in the next line, its good one", location=path
        )
    category = name.rpartition("-")[0]  # island-effects of island-effects-adjunct_island
    for number in range(0, len(lines), 2):
        bad, good = lines[number : number + 2]
        yield _checked(MinimalPair(good, bad, name, category, f"{path}, line {number + 1}"))


def _pair(row: Row, name: str) -> MinimalPair:
    good, bad = (next((column for column in names if column in row.values), None) for names in (_GOOD, _BAD))
    if good is None or bad is None:
        columns = ", ".join(map(repr, row.values))
        raise DataError(
            f"no sentences called {_GOOD[0]} and {_BAD[0]}, or good and bad; its columns are {columns}. Rename them (.csv has "
            "commas between them, .tsv tabs)",
            location=row.place,
        )
    paradigm, category = (
        str(next((row.values[column] for column in names if row.values.get(column) not in (None, "")), other))
        for names, other in ((_PARADIGM, name), (_CATEGORY, ""))
    )
    return _checked(MinimalPair(row.values[good], row.values[bad], paradigm, category, row.place))


def _checked(pair: MinimalPair) -> MinimalPair:
    for kind, sentence in zip(("good", "bad"), pair[:2], strict=True):
        if not isinstance(sentence, str) or not sentence.strip():
            raise DataError(f"the {kind} sentence is {brief(sentence)}, which is no text", location=pair.place)
    if pair.good == pair.bad:
        raise DataError(f"both sentences are {pair.good!r}: leave the pair out, or mend one", location=pair.place)
    return pair


def score_pairs(
    model: LoadedModel, pairs: Sequence[MinimalPair], *, plain: bool = False, progress: Progress = SILENT
) -> PairsReport:
    """Which sentence of each pair the model finds likelier. Raises as `sentence_scores`."""
    places: dict[str, str] = {}  # the first of each sentence
    for pair in pairs:
        for sentence in pair[:2]:
            places.setdefault(sentence, pair.place)
    scores = sentence_scores(model, list(places), plain=plain, progress=progress, places=list(places.values()))
    likelihood = {sentence: score.log_likelihood for sentence, score in zip(places, scores, strict=True)}
    differences = [likelihood[pair.good] - likelihood[pair.bad] for pair in pairs]

    def tallies(names: list[str]) -> dict[str, Tally]:
        groups: dict[str, list[float]] = {}
        for name, difference in zip(names, differences, strict=True):
            groups.setdefault(name, []).append(difference)
        return {name: _tally(groups[name]) for name in sorted(groups) if name}

    paradigms = tallies([pair.paradigm for pair in pairs])
    causal = model.config.architecture == "decoder"
    hidden = "one token hidden" if plain else "later pieces of its word hidden, too"
    method = "log-likelihood" if causal else f"pseudo-log-likelihood, {hidden}"
    benchmark = next((one for paradigm, one in BENCHMARKS.items() if paradigm in paradigms), None)
    if benchmark and len(paradigms) > benchmark.paradigms:  # with pairs of another
        benchmark = None
    return PairsReport(paradigms, tallies([pair.category for pair in pairs]), _tally(differences), method, benchmark)


def _tally(differences: Sequence[float]) -> Tally:
    return Tally(len(differences), sum(one > 0.0 for one in differences), sum(one == 0.0 for one in differences))
