"""Several tokenizers on the same text: what is unknown, how many tokens it takes, how fast, and what they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tokenizers import Tokenizer

from tpulm import interrupt
from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.tokenization.candidates import Candidate
from tpulm.tokenization.contrasts import Contrast, Contrasts
from tpulm.tokenization.forms import forms
from tpulm.tokenization.lengths import Lengths
from tpulm.tokenization.overlap import Overlap, overlap
from tpulm.tokenization.speed import Speed, measure_speed
from tpulm.tokenization.tally import CountedTokens, ScriptCoverage, TextTally, TokenTally, script_coverage
from tpulm.tokenization.text_sample import Reservoir, TextSample

USUAL_LENGTHS = (128, 512)  # rows of BERT's two phases
_SPEED_BYTES = 2_000_000


@dataclass(frozen=True)
class Measured:
    """One tokenizer on the text of the comparison. Special tokens are counted nowhere."""

    label: str
    source: str
    algorithm: str
    fingerprint: str
    vocab_size: int
    tokens_used: int  # distinct ids that occurred
    tokens: int
    unknown_tokens: int
    unknown_rate: float  # of the tokens
    unknown_words: float  # share of the words that are unknown in part or as a whole
    unknown_characters: float  # share of the characters
    tokens_per_word: float
    tokens_per_character: float
    bytes_per_token: float
    speed: Speed
    lengths: Lengths  # of the documents
    scripts: tuple[ScriptCoverage, ...]  # the most frequent first, the same order for all


@dataclass(frozen=True)
class Comparison:
    """Words are what blanks separate; characters do not count blanks."""

    sample: str  # which text was read
    is_whole: bool  # it is all of the corpus
    documents: int
    words: int
    characters: int
    text_bytes: int
    speed_bytes: int  # of these, how many the speed was measured on
    over: tuple[int, ...]  # lengths for which the share of longer documents is told
    measured: tuple[Measured, ...]
    overlaps: tuple[tuple[Overlap, ...], ...]  # [A][B]
    contrasts: tuple[Contrast, ...]

    def as_json(self) -> dict[str, Any]:
        """For json.dumps; overlaps and contrasts by the labels."""
        labels = [one.label for one in self.measured]
        measured = {
            one.label: {
                **{name: value for name, value in asdict(one).items() if name not in ("label", "lengths", "speed")},
                "megabytes_per_second": one.speed._asdict(),
                "lengths": one.lengths.as_json(self.over),
            }
            for one in self.measured
        }
        overlaps = {
            label: {other: cell._asdict() for other, cell in zip(labels, row, strict=True) if other != label}
            for label, row in zip(labels, self.overlaps, strict=True)
        }
        contrasts = [
            {
                "text": one.text,
                "best" if one.best else "worst": labels[one.tokenizer],
                "cost": dict(zip(labels, one.costs, strict=True)),
                "tokens": {label: [piece.token for piece in pieces] for label, pieces in zip(labels, one.pieces, strict=True)},
            }
            for one in self.contrasts
        ]
        given = ("sample", "is_whole", "documents", "words", "characters", "text_bytes", "speed_bytes")
        return {
            **{name: getattr(self, name) for name in given},
            "tokenizers": measured,
            "overlaps": overlaps,
            "contrasts": contrasts,
        }


def compare(
    candidates: Sequence[Candidate],
    sample: TextSample,
    *,
    sequence_length: int | None = None,
    contrasts: int = 6,
    repetitions: int = 3,
    progress: Progress = SILENT,
) -> Comparison:
    """Read the sample once and encode it with all. Memory does not grow with it but by distinct lengths and unknown words.

    `contrasts`: how many passages to show on which they differ; `repetitions`: of the measurement of speed. Raises DataError
    where there is no text.
    """
    tokenizations = [candidate.tokenization for candidate in candidates]
    plain = [made.plain() for made in tokenizations]
    texts, tallies = TextTally(), [TokenTally(made) for made in tokenizations]
    lengths: list[Counter[int]] = [Counter() for _ in candidates]
    kept, differing = Reservoir(_SPEED_BYTES), Contrasts(len(candidates))
    progress.start("tokenizer: compare", total=sample.expected_bytes, unit="bytes")
    for documents in sample:
        interrupt.check("nothing was written")
        before = texts.text_bytes
        _count(documents, plain, texts, tallies, lengths, differing)
        kept.add(documents)
        progress.advance(texts.text_bytes - before)
    if not texts.words:
        raise DataError("there is no text to compare on: the corpus has no document with a word in it")
    known = [forms(made) for made in tokenizations]
    vocabularies = [frozenset(one.values()) for one in known]
    on = kept.texts()
    speeds = measure_speed(tokenizations, on, repetitions=repetitions, progress=progress)
    return Comparison(
        sample=str(sample),
        is_whole=sample.is_whole,
        documents=texts.documents,
        words=texts.words,
        characters=texts.characters.total(),
        text_bytes=texts.text_bytes,
        speed_bytes=sum(len(text.encode()) for text in on),
        over=tuple(sorted({*USUAL_LENGTHS, *([sequence_length] if sequence_length else [])})),
        measured=tuple(
            _measured(candidate, texts, tally, Lengths(counts), speed)
            for candidate, tally, counts, speed in zip(candidates, tallies, lengths, speeds, strict=True)
        ),
        overlaps=tuple(tuple(overlap(mine, theirs) for theirs in vocabularies) for mine in vocabularies),
        contrasts=differing.found(tokenizations, known, count=contrasts),
    )


def _count(
    documents: list[str],
    plain: Sequence[Tokenizer],
    texts: TextTally,
    tallies: Sequence[TokenTally],
    lengths: Sequence[Counter[int]],
    differing: Contrasts,
) -> None:
    found: list[list[CountedTokens]] = []
    for tokenizer, tally, counts in zip(plain, tallies, lengths, strict=True):
        encodings = tokenizer.encode_batch(documents, add_special_tokens=False)
        here = [tally.add(text, encoding) for text, encoding in zip(documents, encodings, strict=True)]
        counts.update(one.tokens for one in here)
        found.append(here)
    for text, tokens in zip(documents, zip(*found, strict=True), strict=True):
        differing.add(text, texts.add(text), tokens)


def _measured(candidate: Candidate, texts: TextTally, tally: TokenTally, lengths: Lengths, speed: Speed) -> Measured:
    made, characters = candidate.tokenization, texts.characters.total()
    unknown = sum(count for character, count in tally.unknown_characters.items() if not character.isspace())
    tokens = max(1, tally.tokens)  # a tokenizer may drop all there is
    return Measured(
        label=candidate.label,
        source=candidate.source,
        algorithm=made.algorithm,
        fingerprint=made.fingerprint,
        vocab_size=made.vocab_size,
        tokens_used=len(tally.used),
        tokens=tally.tokens,
        unknown_tokens=tally.unknown_tokens,
        unknown_rate=tally.unknown_tokens / tokens,
        unknown_words=tally.unknown_words / texts.words,
        unknown_characters=unknown / characters,
        tokens_per_word=tally.tokens / texts.words,
        tokens_per_character=tally.tokens / characters,
        bytes_per_token=texts.text_bytes / tokens,
        speed=speed,
        lengths=lengths,
        scripts=script_coverage(texts, tally),
    )
