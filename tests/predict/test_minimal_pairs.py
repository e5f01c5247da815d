"""Scores of sentences, judged by transformers' models, words as its fast tokenizers number them."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tarfile
from collections import defaultdict
from itertools import groupby
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from command_line import invoke
from encoders import SIZES, WORDS, built
from tpulm import embed, fill_mask, load_model, sentence_scores, storage, tokenization
from tpulm.config import ModelConfig, TokenizerConfig
from tpulm.convert.heads import spec_of
from tpulm.convert.huggingface import LoadedModel, save_loaded
from tpulm.errors import ConfigError, DataError
from tpulm.nn.params import initialize
from tpulm.predict import scores
from tpulm.predict.minimal_pairs import BENCHMARKS, PairsReport, Tally, read_pairs, score_pairs

BLIMP = {"sentence_good": "the film was good", "sentence_bad": "the film was", "UID": "a", "linguistics_term": "x"}

# The columns of osekilab/JBLiMP, data/validated/validated_minimal_pairs.jsonl.
JBLIMP = {"ID": 0, "good_sentence": "a", "bad_sentence": "b", "type": "acceptability", "phenomenon": "x", "phenomenon-2": None}
JBLIMP |= {"paradigm": "a"}


def drawn(count: int) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS[5:], k=draw.randrange(1, 12))) for _ in range(count)]


def by_transformers(torch: ModuleType, folder: Path, sentences: list[str], *, causal: bool) -> list[float]:
    """One forward pass a sentence, over its masked copies; what is hidden goes by the tokenizer's `word_ids`."""
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = (transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM).from_pretrained(folder)
    model.eval()

    def score(rows: list[list[int]], places: list[tuple[int, int]], targets: list[int]) -> float:
        with torch.no_grad():
            logits = model(torch.tensor(rows)).logits
        return sum(float(logits[place].double().log_softmax(-1)[target]) for place, target in zip(places, targets, strict=True))

    totals = []
    for sentence in sentences:
        encoded = tokenizer(sentence, add_special_tokens=False)
        ids, words = encoded["input_ids"], encoded.word_ids()
        if causal:
            totals.append(score([[tokenizer.sep_token_id, *ids]], [(0, place) for place in range(len(ids))], ids))
            continue
        rows = []
        for place in range(len(ids)):
            rest = [other for other in range(place, len(ids)) if words[other] == words[place]]
            hidden = [tokenizer.mask_token_id if other in rest else one for other, one in enumerate(ids)]
            rows.append([tokenizer.cls_token_id, *hidden, tokenizer.sep_token_id])
        totals.append(score(rows, [(place, place + 1) for place in range(len(ids))], ids))
    return totals


@pytest.mark.parametrize("kind", ["bert", "modernbert", "decoder"])
def test_scores_are_those_of_transformers(torch: ModuleType, kind: str):
    folder, sentences = built(kind), drawn(4)
    found = sentence_scores(load_model(folder), sentences)
    expected = by_transformers(torch, folder, sentences, causal=kind == "decoder")
    np.testing.assert_allclose([one.log_likelihood for one in found], expected, atol=1e-4)
    assert [one.tokens for one in found] == [len(sentence.split()) for sentence in sentences]


@pytest.mark.slow
def test_a_pair_of_each_paradigm_of_blimp_is_scored_as_by_transformers(torch: ModuleType, real_data: Path, tmp_path: Path):
    """Real sentences in pieces of real words, by a model with random weights."""
    tokenizer = tokenization.load(real_data / "vocab" / "bert_base_uncased_vocab.txt", TokenizerConfig(lowercase=True))
    config, size = ModelConfig.model_validate(SIZES | {"max_positions": 64}), tokenizer.vocab_size
    params = jax.device_get(initialize(spec_of(config, "masked", vocab_size=size), jax.random.key(1)))
    model = LoadedModel(params, config, size, tokenizer, "masked")
    save_loaded(tmp_path / "model", model)
    with tarfile.open(real_data / "en" / "blimp_dev.tar.gz") as archive:
        archive.extractall(tmp_path / "blimp", filter="data")
    pairs = [next(some) for _, some in groupby(read_pairs(tmp_path / "blimp"), lambda pair: pair.paradigm)]
    assert len(pairs) == 67
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad.removesuffix("."))]  # ends in a word
    found = sentence_scores(model, sentences)
    expected = by_transformers(torch, tmp_path / "model", sentences, causal=False)
    np.testing.assert_allclose([one.log_likelihood for one in found], expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "decoder"])
def test_company_changes_nothing(monkeypatch: pytest.MonkeyPatch, kind: str):
    """Many in a row or one: the same scores; and exactly the same for sentences that read alike."""
    model, sentences = load_model(built(kind)), drawn(20)
    together = sentence_scores(model, [*sentences, *sentences])
    assert together[:20] == together[20:]
    monkeypatch.setattr(scores, "ROW_TOKENS", 0)
    monkeypatch.setattr(scores, "BATCH_TOKENS", 32)
    alone = [sentence_scores(model, sentence)[0] for sentence in sentences[:2]]
    np.testing.assert_allclose([one.log_likelihood for one in alone], [one.log_likelihood for one in together[:2]], rtol=1e-5)


def test_the_rest_of_a_word_is_hidden_with_its_pieces():
    model = load_model(built("bert"))
    encoded = scores._encode(model, ["the film"])[0]._replace(words=(0, 0))
    hidden = [copy.ids for copy in scores._masked_copies(model, [encoded], plain=False)]
    mask, (the, film) = model.tokenization.special.mask, encoded.ids
    assert [tuple(ids[1:-1]) for ids in hidden] == [(mask, mask), (the, mask)]
    plain = [tuple(copy.ids[1:-1]) for copy in scores._masked_copies(model, [encoded], plain=True)]
    assert plain == [(mask, film), (the, mask)]


def test_in_scripts_without_spaces_each_token_is_a_word():
    """The tokenizer's own number of the word and the place in the text, of each token; a character may have several tokens."""
    for text, tokens, words in (
        ("太郎がA。", [(0, (0, 1)), (0, (1, 3)), (0, (3, 4)), (1, (4, 5))], (0, 1, 2, 3)),
        ("太郎", [(0, (0, 1)), (0, (0, 1)), (0, (0, 1)), (0, (1, 2))], (0, 0, 0, 1)),
        ("AIはopen", [(0, (0, 2)), (0, (2, 3)), (0, (3, 5)), (0, (5, 7))], (0, 1, 2, 2)),
        ("영화를 봤다", [(0, (0, 2)), (0, (2, 3)), (1, (4, 6)), (None, (6, 6))], (0, 0, 1, 2)),
    ):
        assert scores._words(tokens, text) == words


def test_files_are_told_apart_by_their_folders_and_lines_from_rows(tmp_path: Path):
    for name in ("x/v1.2-p.tsv", "y/v1.2-p.tsv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("good\tbad\nthe cat\tcat the\n")
    assert [pair.paradigm for pair in read_pairs(tmp_path / "*" / "*.tsv")] == ["x/v1.2-p", "y/v1.2-p"]
    (tmp_path / "x" / "notes.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"notes\.txt"):
        read_pairs(tmp_path / "x")
    (tmp_path / "y" / "notes.doc").write_text("one\ntwo\n")
    with pytest.raises(ConfigError, match=r"\.doc") as failure:
        read_pairs(tmp_path / "y")
    assert "--format" not in str(failure.value)


@pytest.mark.parametrize("other", ["a.jsonl.gz", "validated.csv"])
def test_a_file_beside_its_copy_is_refused(tmp_path: Path, other: str):
    """As JBLiMP's folder has raw_minimal_pairs.csv beside validated_minimal_pairs.jsonl."""
    (tmp_path / "a.jsonl").write_text(FILES["blimp.jsonl"])
    table = f"{','.join(BLIMP)}\n{','.join(map(str, BLIMP.values()))}\n".encode()
    (tmp_path / other).write_bytes(table if other.endswith("csv") else gzip.compress(FILES["blimp.jsonl"].encode()))
    with pytest.raises(DataError, match=f"{other} have the same pair"):
        read_pairs(tmp_path)


@pytest.mark.parametrize("kind", ["gemma", "llama", "sentencepiece"])
def test_words_are_those_between_spaces_where_the_tokenizer_cuts_none(tmp_path: Path, kind: str):
    """As GemmaConverter of transformers 5 and LlamaConverter of transformers 4 write tokenizer.json; and as SentencePiece's
    files with split_by_whitespace=false are read."""
    special, sentences = WORDS[:5], ["the cats sat", "cats", "sat the cats", "the  sat"]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never" if kind == "gemma" else "always")
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=[*"thecas"], max_token_length=3, show_progress=False)
    tokenizer.train_from_iterator(["the sat the"] * 4, trainer)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = spaces if kind == "gemma" else normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    uncut = pre_tokenizers.Metaspace(prepend_scheme="never", split=False) if kind == "sentencepiece" else None
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous") if kind == "gemma" else uncut
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = load_model(built("bert"))._replace(tokenization=tokenization.load(tmp_path))
    for sentence, encoded in zip(sentences, scores._encode(model, sentences), strict=True):
        words = defaultdict[int, str](str)
        for token_id, word in zip(encoded.ids, encoded.words, strict=True):
            words[word] += model.tokenization.token(token_id).replace("▁", "")
        assert [word for word in words.values() if word] == sentence.split()
        assert len(encoded.ids) > len(words), "some words are of several tokens"


def test_what_cannot_be_scored():
    long = "the film " * 20
    for sentences, error in (
        (" ", "sentence 1 of 1"),
        (long, "at most 32"),
        (["the", long, "film", long], r"sentence 2 of 4: .* 2 "),
    ):
        with pytest.raises(DataError, match=error):
            sentence_scores(load_model(built("bert")), sentences)
    with pytest.raises(ConfigError, match="detection"):
        sentence_scores(load_model(built("electra")), "the film")
    with pytest.raises(DataError, match="text 2 of 2: it is None"):
        sentence_scores(load_model(built("bert")), ["the film", None])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="plain"):
        sentence_scores(load_model(built("decoder")), "the film", plain=True)


FILES = {
    "blimp.jsonl": json.dumps(BLIMP) + "\n",
    "jblimp.jsonl": json.dumps(JBLIMP) + "\n",
    "a.tsv": "good\tbad\tcategory\nthe film\tfilm the\tx\n",
    "a.csv": 'bad,good,type\n"film, the",the film,x\n',
    "x-a.txt": "film the .\nthe film .\n",
}


def test_files_of_pairs(tmp_path: Path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
        (pair,) = read_pairs(PurePath(tmp_path / name))
        assert (pair.paradigm.removeprefix("x-"), pair.category) == ("a", "x")
        assert pair.good in ("the film was good", "a", "the film", "the film .")


def test_the_category_of_a_file_of_zorro_is_all_before_its_paradigm(tmp_path: Path):
    name = "island-effects-adjunct_island"
    (tmp_path / f"{name}.txt").write_text(FILES["x-a.txt"])
    (pair,) = read_pairs(PurePath(tmp_path))
    assert (pair.paradigm, pair.category) == (name, "island-effects")


def test_lines_of_a_compressed_file(tmp_path: Path):
    (tmp_path / "x-a.txt.gz").write_bytes(gzip.compress(FILES["x-a.txt"].encode()))
    (pair,) = read_pairs(PurePath(tmp_path))
    assert pair[:4] == ("the film .", "film the .", "x-a", "x")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_pairs_in_a_named_encoding(tmp_path: Path, name: str):
    good, bad = "비가 온다", "비를 온다"
    content = {"a.csv": f"good,bad\n{good},{bad}\n", "a.jsonl": json.dumps({"good": good, "bad": bad}, ensure_ascii=False)}
    (tmp_path / name).write_text(content.get(name, f"{bad}\n{good}\n"), encoding="cp949")
    with pytest.raises(DataError, match="--encoding") as failure:
        read_pairs(PurePath(tmp_path / name))
    assert "--on-error" not in str(failure.value)
    assert [pair[:2] for pair in read_pairs(PurePath(tmp_path / name), "cp949")] == [(good, bad)]


def test_files_that_hold_none(tmp_path: Path):
    tables = "good;bad\na;b\n", "good\tworse\na\tb\n", "good\tbad\na\t\n", "good\tbad\na\ta\n", "good\tgood\tbad\na\tb\tc\n"
    others = ("a.txt", "one line\n"), ("a.jsonl", '{"good": 1, "bad": "b"}\n'), ("a.jsonl", "")
    for name, content in (*(("a.tsv", table) for table in tables), *others):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=name) as failure:
            read_pairs(PurePath(tmp_path / name))
        assert "--no-header" not in str(failure.value)
    (tmp_path / "a.txt").write_text("a b\nb a\n\nc d\nd c\n")
    with pytest.raises(DataError, match=r"a\.txt, line 3: a blank line"):
        read_pairs(PurePath(tmp_path / "a.txt"))


def test_files_about_the_pairs_are_left_out_with_a_note(tmp_path: Path):
    for name, content in (FILES | {"README.md": "About", "config.json": "{}"}).items():
        if name in ("a.tsv", "README.md", "config.json"):
            (tmp_path / name).write_text(content)
    notes: list[str] = []
    assert len(read_pairs(tmp_path, note=notes.append)) == 1
    assert [word in notes[0] for word in ("README.md", "config.json", "a.tsv")] == [True, True, False]


def test_files_that_differ_in_their_suffix_alone_are_paradigms_of_their_own(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("good\tbad\nthe film\tfilm the\n")
    (tmp_path / "a.csv").write_text("good,bad\nthe plot,plot the\n")
    assert {PurePath(pair.paradigm).name for pair in read_pairs(tmp_path)} == {"a.tsv", "a.csv"}


def test_an_empty_file_among_others_is_named(tmp_path: Path):
    """Else the mean of paradigms would be that of fewer."""
    (tmp_path / "a.tsv").write_text(FILES["a.tsv"])
    for name, content in (("b.jsonl", ""), ("c.tsv", "good\tbad\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=f"{name}.* no pairs"):
            read_pairs(PurePath(tmp_path))
        (tmp_path / name).unlink()


def test_names_of_paradigms_may_be_numbers(tmp_path: Path):
    rows = [{"good": f"a {number}", "bad": f"{number} a", "paradigm": number, "category": number} for number in range(2)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(pair.paradigm, pair.category) for pair in read_pairs(PurePath(tmp_path / "a.jsonl"))] == [("0", "0"), ("1", "1")]


@pytest.mark.parametrize(("sentence", "fault"), [("film " * 40, "42 tokens"), ("\u0001", "no tokens")])
def test_a_sentence_that_cannot_be_scored_is_told_with_its_line(tmp_path: Path, sentence: str, fault: str):
    rows = [{"good": "the film", "bad": "film the"}, {"good": "the film", "bad": "the the"}, {"good": sentence, "bad": "the"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=f"a.jsonl, line 3: {fault}"):
        score_pairs(load_model(built("bert")), read_pairs(PurePath(tmp_path / "a.jsonl")))


def test_ties_are_not_right(tmp_path: Path):
    """Unknown words read alike, so that both sentences are as likely."""
    lines = [BLIMP, {**BLIMP, "UID": "b", "sentence_good": "the qqq", "sentence_bad": "the xxx"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-16")
    report = score_pairs(load_model(built("bert")), read_pairs(PurePath(tmp_path / "pairs.jsonl"), "utf-16"))
    assert report.by_paradigm["b"] == (1, 0, 1)
    assert report.total == (2, report.by_paradigm["a"].right, 1)
    assert report.accuracy == report.by_paradigm["a"].right / 2
    told = invoke("bench", "pairs", tmp_path / "pairs.jsonl", "--model", built("bert"), "--encoding", "utf-16", "--json")
    assert json.loads(told.stdout)["ties"] == 1


def test_a_part_of_a_benchmark_does_not_count_as_the_whole():
    one, blimp = Tally(2, 1, 0), BENCHMARKS["adjunct_island"]
    paradigms = {f"p{number}": one for number in range(67)}
    names = [
        PairsReport(some, {}, one, "", benchmark).name("mine")
        for some, benchmark in ((paradigms, blimp), ({"adjunct_island": one}, blimp), (paradigms, None))
    ]
    assert names == ["BLiMP", "1 of 67 paradigms of BLiMP", "mine"]


@pytest.mark.parametrize("given", ["{}/mine.tsv", "."])
def test_the_report_and_the_card_of_a_run_tell_its_score(
    toy_run: tuple[Any, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
):
    workdir, folder = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(toy_run[1], workdir)
    folder.mkdir()
    (folder / "mine.tsv").write_text("good\tbad\nthe cat sat\tsat cat the\n")
    monkeypatch.chdir(folder)
    scored = invoke("bench", "pairs", given.format(folder), "--model", workdir, "--json")
    accuracy = f"{json.loads(scored.stdout)['accuracy']:.1%}"
    invoke("bench", "pairs", given.format(folder), "--model", workdir, "--plain", code=0)
    invoke("export", workdir, code=0)
    page, card = ((workdir / name).read_text() for name in ("report/index.html", "export/README.md"))
    row, plain = (line for line in card.splitlines() if "minimal pairs of mine" in line)
    assert accuracy in row and "later pieces" in row and "minimal pairs of mine" in page
    assert ", plain |" in plain and "one token hidden" in plain


def test_the_score_of_a_run_that_is_under_way_is_told_and_not_kept(toy_run: tuple[Any, Path, Any], tmp_path: Path):
    workdir, pairs = tmp_path / "run", tmp_path / "mine.tsv"
    shutil.copytree(toy_run[1], workdir)
    pairs.write_text("good\tbad\nthe cat sat\tsat cat the\n")
    with storage.held(workdir):
        scored = invoke("bench", "pairs", pairs, "--model", workdir, "--json", code=0)
    assert json.loads(scored.stdout)["pairs"] == 1
    assert not (workdir / "results" / "pairs.json").exists()


@pytest.mark.parametrize("use", [sentence_scores, embed, lambda model, text: fill_mask(model, f"{text} [MASK]")])
def test_a_shortage_of_memory_is_named(use: Any, monkeypatch: pytest.MonkeyPatch):
    """XLA's own error of a device that has no more, by which JAX's documentation ("GPU memory allocation") knows it."""

    def exhausted(*args: Any, **settings: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5 bytes.")

    model = load_model(built("bert"))
    for name in ("device_put", "make_array_from_callback"):
        monkeypatch.setattr(jax, name, exhausted)
    with pytest.raises(ConfigError, match="allocate 5 bytes"):
        use(model, "the film")
