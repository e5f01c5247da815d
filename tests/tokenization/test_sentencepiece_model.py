"""SentencePiece's files against the sentencepiece library: the same ids, or another cut that is exactly as likely."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, strategies as st

from tpulm import tokenization
from tpulm.errors import DataError
from tpulm.tokenization import Tokenization

WORDS = ["the", "cat", "sat", "on", "a", "mat", "영화", "정말", "재미있다", "보고", "싶은", "배우", "吾輩は", "猫である"]
WORDS += ["名前はまだ無い", "ねこ", "カタカナ", "中文", "你好", "世界"]
ODD = ["", " ", "  a  b ", "\t", "a\tb", "か\u3099", "ﾊﾟ", "①", "\u3000x", "e\u0301", "<s>", "</s> <unk>", "👨‍👩‍👧"]
ODD += ["\n", "a\nb", "한글", "𠮷", "[MASK]"]
AS_IT_IS = {"remove_extra_whitespaces": False, "add_dummy_prefix": False}
OPTIONS: list[dict[str, Any]] = [
    {"model_type": "unigram"},
    {"model_type": "unigram", "byte_fallback": True},
    {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    {"model_type": "unigram", "user_defined_symbols": ["<x>", "영화"], "split_by_whitespace": False},
    {"model_type": "unigram", "normalization_rule_name": "identity", **AS_IT_IS},
    {"model_type": "bpe"},
    {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"},
    {"model_type": "bpe", "bos_id": -1, "eos_id": -1, "pad_id": 3},
]


def sentences(count: int) -> list[str]:
    chance = random.Random(0)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 9))) for _ in range(count)]


def trained(path: Path, **options: Any) -> Path:
    out, size = io.BytesIO(), {"word": 20}.get(options["model_type"], 400 if options.get("byte_fallback") else 120)
    how: dict[str, Any] = {"vocab_size": size, "hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        sentence_iterator=iter(sentences(400)), model_writer=out, **how
    )
    path.write_bytes(out.getvalue())
    return path


def check(path: Path, ours: Tokenization, texts: Iterable[str]) -> int:
    """How many texts have exactly the same ids; the others are cut in ways that are equally likely."""
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    same = 0
    for text in texts:
        expected, found = theirs.encode(text), ours.encode([text]).ids.tolist()
        same += expected == found
        likelihoods = [sum(map(theirs.get_score, ids)) for ids in (expected, found) if expected != found]
        assert likelihoods == pytest.approx(likelihoods[::-1], abs=1e-3), (text, expected, found)
    return same


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_ids_are_the_librarys(tmp_path: Path, options: dict[str, Any]):
    path, texts = trained(tmp_path / "m.model", **options), [*sentences(150), *ODD]
    ours = tokenization.load(path)
    assert check(path, ours, texts) >= len(texts) - 3
    assert ours.decode(ours.encode(["the cat 영화"]).ids) == "the cat 영화"
    assert len(set(ours.special)) == 5


SYMBOLS = [  # that normalization, casing, spaces or each other would change
    ["\n", "\t", "ㅋㅋ", "…", "①", "Ａ", "A B", "NEW", "zz", "zzz"],
    ["[X]", "<unused1>", "영", "か\u3099", "a▁b", "A", "[MASK]"],
    ["  ", "    ", "▁▁▁", "\n", " x", "y "],
]
AMONG = "{0} a{0}b {0}{0} the {0} cat\n{0}영화{0}\u0301 ㅋ{0}"
RULES: list[dict[str, Any]] = [
    {"normalization_rule_name": "nmt_nfkc"},
    {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True},
    {"normalization_rule_name": "identity", "split_by_whitespace": False},
    {"normalization_rule_name": "nmt_nfkc_cf", "remove_extra_whitespaces": False},
    {"normalization_rule_name": "identity", **AS_IT_IS},
]


@pytest.mark.slow
@pytest.mark.parametrize("symbols", SYMBOLS, ids=["normalized", "others", "spaces at an end"])
@pytest.mark.parametrize("options", RULES, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_user_defined_symbols_are_kept_as_they_are(tmp_path: Path, kind: str, options: dict[str, Any], symbols: list[str]):
    path = trained(tmp_path / "m.model", model_type=kind, user_defined_symbols=symbols, **options)
    if "  " in symbols and options.get("remove_extra_whitespaces", True):
        with pytest.raises(DataError, match="user-defined symbols"):
            tokenization.load(path)
        return
    theirs, ours = sentencepiece.SentencePieceProcessor(model_file=str(path)), tokenization.load(path)
    texts = [AMONG.format(symbol) for symbol in symbols if symbol not in ("[MASK]", "▁▁▁")]  # plain text to us; spaces
    texts += [*symbols[:-1], *sentences(50), *ODD[:-1], "new NEW ＮＥＷ", "zzzzz…..", "a   b     c", " \n the", "A  B y the x"]
    texts += ["\U00100000"]  # what stands for a symbol
    for text in texts if "byte_fallback" not in options else texts[:-1]:
        assert ours.encode([text]).ids.tolist() == theirs.encode(text), text
    assert ours.encode_with_offsets(texts).ids.tolist() == ours.encode(texts).ids.tolist()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_control_symbols_match_no_text(tmp_path: Path, kind: str):
    path = trained(tmp_path / "m.model", model_type=kind, control_symbols=["<c>", "<dd>"])
    theirs, ours = sentencepiece.SentencePieceProcessor(model_file=str(path)), tokenization.load(path)
    for text in ("<c>", "the <c> a<dd>b", "<<c>>"):
        assert ours.encode([text]).ids.tolist() == theirs.encode(text), text
    assert ours.vocabulary()["<c>"] == theirs.piece_to_id("<c>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenization]:
    path = trained(tmp_path_factory.mktemp("sp") / "m.model", model_type="unigram")
    return path, tokenization.load(path)


@given(st.text(st.sampled_from("abcehlmnost 영화정말재미있다吾輩は猫であるﾊﾟｶﾞ①\u3000\u3099👍.,!"), max_size=40))
def test_any_text_of_four_scripts(model: tuple[Path, Tokenization], text: str):
    check(*model, [text])


def test_what_it_lacks_comes_after_its_own_tokens(model: tuple[Path, Tokenization]):
    path, ours = model
    size = sentencepiece.SentencePieceProcessor(model_file=str(path)).get_piece_size()
    assert {ours.special.pad, ours.special.mask} == {size, size + 1}
    assert (ours.special.cls, ours.special.sep, ours.special.unknown) == (1, 2, 0)
    assert ours.encode_one("the [MASK]").count(ours.special.mask) == 1


KINDS: dict[str, dict[str, Any]] = {"characters": {"model_type": "char"}, "words": {"model_type": "word"}}
KINDS |= {"spaces after words": {"model_type": "bpe", "treat_whitespace_as_suffix": True}}


@pytest.mark.parametrize(("message", "options"), KINDS.items())
def test_kinds_that_have_no_like(tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(DataError, match=rf"m\.model.*{message}"):
        tokenization.load(trained(tmp_path / "m.model", **options))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe no model", b"[PAD]\n[UNK]\n"])
def test_what_is_no_model(tmp_path: Path, content: bytes):
    (tmp_path / "m.model").write_bytes(content)
    with pytest.raises(DataError, match="SentencePiece"):
        tokenization.load(tmp_path / "m.model")


def test_a_real_one(real_data: Path):
    path = real_data / "ja" / "test_ja_model.model"
    lines = (real_data / "ja" / "wagahaiwa_nekodearu.txt").read_text(encoding="utf-8").split("\n")
    ours = tokenization.load(path)
    assert check(path, ours, lines) == len(lines)
    with gzip.open(real_data / "ko" / "nsmc_reviews.txt.gz", "rt", encoding="utf-8") as stream:
        reviews = [next(stream).rstrip("\n") for _ in range(500)]
    assert check(path, ours, reviews) > 490


def damaged(content: bytes, kind: str) -> bytes:
    """Lengths stay as they are, so that only what is meant is damaged."""
    if kind == "compiled rules":  # of 240 KB, behind the pieces
        return content[:-200_000] + bytes(byte ^ 0xA5 for byte in content[-200_000:-40]) + content[-40:]
    piece = "▁the".encode()
    place = content.index(b"\x0a" + bytes([len(piece)]) + piece)
    score = place + 2 + len(piece)
    assert content[score] == 0x15, "a score, in four bytes"
    if kind == "piece":
        return content[: place + 2] + b"\xff" + content[place + 3 :]
    return content[: score + 1] + b"\x00\x00\xc0\x7f" + content[score + 5 :]


@pytest.mark.parametrize(
    ("kind", "message"), [("compiled rules", "the tokenizers library"), ("piece", "UTF-8"), ("score", "score nan")]
)
def test_damage_within(model: tuple[Path, Tokenization], tmp_path: Path, capfd: pytest.CaptureFixture, kind: str, message: str):
    (tmp_path / "m.model").write_bytes(damaged(model[0].read_bytes(), kind))
    with pytest.raises(DataError, match=rf"m\.model.*{message}"):
        tokenization.load(tmp_path / "m.model")
    assert capfd.readouterr().err == "", "what a panic prints is not shown"
