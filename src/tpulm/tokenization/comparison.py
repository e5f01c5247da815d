"""Several tokenizers on the same text: what is unknown, how many tokens it takes, how fast, and what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.runtime import interrupt
from tpulm.tokenization.candidates import Candidate
from tpulm.tokenization.contrasts import Contrast, Contrasts
from tpulm.tokenization.forms import Form, forms
from tpulm.tokenization.speed import Speed, measure_speed
from tpulm.tokenization.tally import Fit, TextTally, TokenTally
from tpulm.tokenization.text_sample import Reservoir, TextSample

PERCENTILES = (5, 25, 50, 75, 95, 99)
_USUAL_LENGTHS = (128, 512)  # rows of BERT's two phases
_SPEED_BYTES = 2_000_000


@dataclass(frozen=True)
class Overlap:
    """Of the forms A and B of two vocabularies: `share` is |A∩B| / |A|, `jaccard` |A∩B| / |A∪B|."""

    both: int
    share: float
    jaccard: float


@dataclass(frozen=True)
class Lengths:
    """Of the documents in tokens."""

    percentiles: dict[str, int]  # "5" to "99", and "max"
    share_over: dict[int, float]  # of documents longer than these


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
    """Words are what blanks separate; characters do not count blanks. Tokenizers are named by their labels."""

    sample: str  # which text was read
    is_whole: bool  # it is all of the corpus
    documents: int
    words: int
    characters: int
    text_bytes: int
    speed_bytes: int  # of these, how many the speed was measured on
    tokenizers: Mapping[str, Measured]
    overlaps: Mapping[str, Mapping[str, Overlap]]  # [A][B]
    contrasts: Sequence[Contrast]

    @property
    def summary(self) -> str:
        return f"On {self.sample}: {self.documents:,} documents, {self.words:,} words, {self.characters:,} characters."

    def as_json(self) -> dict[str, Any]:
        """For json.dumps."""
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
    """Read the sample once and encode it with all. Memory does not grow with it but by distinct lengths and unknown words.

    `contrasts`: how many passages to show on which they differ; `repetitions`: of the measurement of speed. Raises DataError
    where there is no text.
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
