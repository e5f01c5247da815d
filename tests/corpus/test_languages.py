"""Documents of other languages: left out, counted and shown; what cannot be told stays."""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from pathlib import Path

import pytest

from tpulm import corpus
from tpulm.config import CleaningConfig, CorpusConfig
from tpulm.corpus import cleaning
from tpulm.corpus.cleaning import Cleaner
from tpulm.corpus.documents import Batch
from tpulm.errors import ConfigError, MissingExtra

KOREAN = "이 영화는 정말 재미있었고 배우들의 연기도 훌륭했습니다."
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
ENGLISH = "The cat sat on the mat while the rain fell over the old green hills."
UNTOLD = ["12345", "!!!", "ㅋㅋ"]


def cleaned(documents: list[str], *wanted: str) -> tuple[list[str], Counter[str], Cleaner]:
    skipped: Counter[str] = Counter()
    cleaner = Cleaner(CleaningConfig(languages=wanted))
    found = cleaner.clean(Batch("\n".join(documents), "\n"), skipped)
    return [document.decode() for document in found.documents], skipped, cleaner


def test_what_is_in_another_language_goes():
    documents = [KOREAN, ENGLISH, JAPANESE, *UNTOLD, KOREAN * 40]
    kept, skipped, cleaner = cleaned(documents, "ko")
    assert kept == [KOREAN, *UNTOLD, KOREAN * 40] and skipped == {"other_language": 2}
    english, japanese = cleaner.samples.removed()["other_language"]
    assert english.startswith("en ") and english.endswith(ENGLISH) and japanese.startswith("ja ")
    assert cleaned(documents, "ko", "en", "ja")[0] == documents
    assert cleaned(documents)[0] == documents


def test_only_the_beginning_of_a_long_document_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cleaning, "_CHARACTERS", len(ENGLISH))
    assert cleaned([ENGLISH + KOREAN * 20], "en")[1] == {}
    assert cleaned([ENGLISH + KOREAN * 20], "ko")[1] == {"other_language": 1}


def test_an_unknown_language_is_said_before_anything_is_read(tmp_path: Path):
    (tmp_path / "text.txt").write_text("a\nb\n")
    config = CorpusConfig.model_validate({"sources": str(tmp_path / "text.txt"), "cleaning": {"languages": ["kor"]}})
    with pytest.raises(ConfigError, match=r"'kor' is not among the \d+ languages .* codes of ISO 639"):
        corpus.scatter(config, tmp_path / "w", part_bytes=1000)
    assert not (tmp_path / "w" / "corpus" / "manifest.json").exists()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[languages\]' in your clone"):
        Cleaner(CleaningConfig(languages=("ko",)))


def test_real_text(real_data: Path):
    with gzip.open(real_data / "ko" / "nsmc_reviews.txt.gz", "rt", encoding="utf-8") as stream:
        lines = [line.rstrip("\n") for line, _ in zip(stream, range(2_000), strict=False)]
    kept, skipped, _ = cleaned([line for line in lines if line.strip()], "ko")
    assert len(kept) > 0.97 * len(lines) and skipped["other_language"] < 40
    assert cleaned(lines, "ja")[1]["other_language"] > 0.8 * len(lines)
