from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tpulm.corpus import read_part, sample_texts
from tpulm.corpus.identity import keys_of
from tpulm.errors import DataError

TEXTS = [f"document number {number} has a text of its own" for number in range(2000)]
CORPUS = "\n".join([*TEXTS, *TEXTS[:100]])


def order(documents: list[str]) -> list[int]:
    keys = keys_of([document.encode() for document in documents])
    return [int(high) << 64 | int(low) for high, low in zip(keys.high, keys.low, strict=True)]


@pytest.fixture
def file(write: Callable) -> Path:
    return write("a.txt", CORPUS)


def test_every_document_is_in_one_part_once_and_the_order_does_not_depend_on_the_parts(scattered: Callable, file: Path):
    one, many = scattered(file, part_bytes=1_000_000), scattered(file, part_bytes=10_000)
    for corpus, part_bytes in ((one, 1_000_000), (many, 10_000)):
        assert corpus.manifest.num_parts == -(-corpus.manifest.counts.bytes // part_bytes)
        assert corpus.documents() == sorted(TEXTS)
        assert sum(part.duplicates for part in corpus.parts()) == 100
        sizes = [len(part.train) for part in corpus.parts()]
        assert min(sizes) > 0.5 * max(sizes)
    assert (in_order := order(one.train())) == sorted(in_order)
    assert (one.train(), one.holdout(), one.manifest.fingerprint) == (many.train(), many.holdout(), many.manifest.fingerprint)


def test_the_holdout_is_a_share_and_never_trained_on(scattered: Callable, file: Path):
    corpus = scattered(file, holdout_fraction=0.1, deduplicate=False)
    assert not set(corpus.holdout()) & set(corpus.train())
    assert 150 < len(set(corpus.holdout())) < 250
    smaller = scattered(file, holdout_fraction=0.02)
    assert set(smaller.holdout()) < set(corpus.holdout())


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_a_tiny_corpus_has_one_document_held_out(scattered: Callable, write: Callable, size: int):
    corpus = scattered(write("a.txt", "\n".join(TEXTS[:size] * 2)))
    assert len(corpus.holdout()) >= min(1, size - 1)
    assert len(corpus.train()) == size - len(corpus.holdout()) >= 1


def test_duplicates_stay_when_asked_for(scattered: Callable, file: Path):
    corpus = scattered(file, deduplicate=False)
    assert Counter(corpus.train() + corpus.holdout()) == Counter(CORPUS.split("\n"))
    assert len(set(corpus.train()[: len(set(corpus.train()))])) == len(set(corpus.train()))  # second copies come last


def test_weights_copy_training_documents_of_their_source(scattered: Callable, write: Callable):
    write("a.txt", "\n".join(TEXTS[:1000]))
    path = write("b.txt", "\n".join(TEXTS[500:]))
    sources = [{"path": str(path.parent / "a.txt"), "weight": 2.3}, {"path": str(path), "weight": 0.5}]
    corpus = scattered(sources, holdout_fraction=0.1)
    plain = scattered([{**source, "weight": 1.0} for source in sources], holdout_fraction=0.1)
    assert corpus.holdout() == plain.holdout()
    assert sorted(corpus.sample(10**9)) == sorted(plain.train()), "the tokenizer sees each once"
    copies = Counter(corpus.train())
    first = [copies[text] for text in plain.train() if text in TEXTS[:1000]]  # of both sources the first one counts
    second = [copies[text] for text in plain.train() if text not in TEXTS[:1000]]
    assert set(first) == {2, 3} and 0.2 < sum(number == 3 for number in first) / len(first) < 0.4
    assert set(second) == {0, 1} and 0.4 < sum(second) / len(second) < 0.6
    (part,) = corpus.parts()
    assert part.left_out == second.count(0)
    assert part.added == sum(first) - len(first)
    distinct = len(set(part.train))
    assert len(set(part.train[:distinct])) == distinct  # copies of a document are far apart


def test_the_tokenizer_sees_a_bounded_sample_of_the_whole_corpus(scattered: Callable, file: Path):
    corpus = scattered(file, part_bytes=10_000)
    for max_bytes in (2_000, 20_000, 80_000):
        found = list(sample_texts(corpus.workdir, corpus.manifest, max_bytes))
        texts = [text for part in found for text in part]
        assert max_bytes - 100 < sum(len(text.encode()) for text in texts) <= max_bytes
        assert len(set(texts)) == len(texts) and set(texts) < set(corpus.train())
        assert len(found) > corpus.manifest.num_parts // 2  # from all parts, and not from the first
        assert found == list(sample_texts(corpus.workdir, corpus.manifest, max_bytes))


def test_many_duplicates_do_not_shrink_the_sample(scattered: Callable, write: Callable):
    corpus = scattered(write("a.txt", "\n".join([*TEXTS, *["the same again"] * 30_000])))
    assert sum(map(len, corpus.sample(50_000))) > 49_900


def test_a_sample_without_room_for_a_document(scattered: Callable, file: Path):
    with pytest.raises(DataError, match=r"tokenizer\.sample_bytes"):
        scattered(file).sample(10)


def test_a_part_without_documents(scattered: Callable, write: Callable):
    corpus = scattered(write("a.txt", "x" * 5000 + "\ny"), part_bytes=500)
    assert corpus.manifest.num_parts == 11
    assert sum(len(part.train) + len(part.holdout) for part in corpus.parts()) == 2
    assert len(list(sample_texts(corpus.workdir, corpus.manifest, 10**6))) <= 2
    assert read_part(corpus.workdir, corpus.manifest, 10) is not None
