"""Files of tokenizers: those that others made, and the folders that `save` writes, which transformers reads alike."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from made_up import as_lists, make_texts, of_transformers, write_vocabulary
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from toy_runs import Notes
from tpulm import storage, tokenization
from tpulm.config import TokenizerConfig
from tpulm.convert.huggingface import vocabulary_settings
from tpulm.errors import ConfigError, DataError, StorageError
from tpulm.labelled.rows import encode_rows
from tpulm.tokenization import Tokenization, load, load_manifest, save, vocab_size_of
from tpulm.tokenization.hf_files import guarded, watched
from tpulm.tokenization.special import TOKENS

WORDS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", ",", "Ca", "##t", "日"]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return path


def tokens(made: Tokenization, text: str) -> list[str]:
    return [made.token(index) for index in made.encode([text]).ids]


class TestVocabulary:
    def test_blanks_after_a_token_are_no_part_of_it(self, tmp_path: Path):
        """The ids of the words are those of tokenizers' own reader of such files. A line of blanks alone stays a token."""
        path = tmp_path / "v.txt"
        path.write_bytes("\n".join([*WORDS, "rain ", "snow \t", "hail\u3000\r", "\u2028"]).encode())
        found, expected = load(path).vocabulary(), models.WordPiece.read_file(str(path))
        assert all(found[token] == expected[token] for token in (*WORDS, "rain", "snow", "hail"))
        assert found["\u2028"] == len(WORDS) + 3

    def test_windows_line_ends_byte_order_mark_and_no_last_line_end(self, vocabulary: Path, tmp_path: Path):
        other = tmp_path / "windows.txt"
        other.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(WORDS).encode())
        assert load(other).fingerprint == load(vocabulary).fingerprint
        assert asdict(load(other).special) == {"pad": 0, "unknown": 2, "cls": 3, "sep": 4, "mask": 5}

    def test_capitals_without_lowercase_are_pointed_out(self, tmp_path: Path):
        path, notes = write_vocabulary(tmp_path, "the"), Notes()
        load(path, TokenizerConfig(lowercase=True), progress=notes)
        tokenization.load_vocabulary(path, lowercase=False, note=notes.note)
        load(path, progress=notes)
        of_options, of_settings = notes.notes
        assert "--lowercase" in of_options and "tokenizer." not in of_options and ":uncased" not in of_options
        assert "tokenizer.lowercase = true" in of_settings and f"{path}:uncased" in of_settings
        (tmp_path / "tokenizer.json").write_text(load(path).canonical_json)
        for origin in (tmp_path, tmp_path / "tokenizer.json"):
            (note,) = tokenization.normalization_warnings(load(path), origin)
            assert "normalizer" in note and "tokenizer.lowercase" not in note and ":uncased" not in note

    @pytest.mark.parametrize("settings", [{"lowercase": True}, {"strip_accents": True}, {"split_cjk": False}])
    def test_settings_beside_a_file_that_says_itself(self, vocabulary: Path, settings: dict[str, bool]):
        config, path = TokenizerConfig.model_validate(settings), vocabulary.with_name("other.json")
        path.write_text(load(vocabulary, config).canonical_json)
        assert load(path, config).fingerprint == load(path).fingerprint
        path.write_text(load(vocabulary).canonical_json)
        with pytest.raises(ConfigError, match=rf"tokenizer\.{min(settings)}"):
            load(path, config)
        assert tokenization.load_vocabulary(path, note=print).lowers_case is False

    def test_words_that_no_text_gives(self, tmp_path: Path):
        """As transformers reads the same folder: the words that do not come back as themselves."""
        for words, settings, lost in (
            ("the Cat NASA", {"do_lower_case": True}, ["Cat", "NASA"]),
            ("the Cat NASA", {"do_lower_case": False}, []),
            ("schön gross äpfel", {"do_lower_case": True, "strip_accents": None}, ["schön", "äpfel"]),
            ("schön gross äpfel", {"do_lower_case": True, "strip_accents": False}, []),
            ("日本 東京 の", {"do_lower_case": False}, ["日本", "東京"]),  # of morphemes, read as a BERT's
            ("日本 東京 の", {"do_lower_case": False, "tokenize_chinese_chars": False}, []),
        ):
            path = write_vocabulary(tmp_path, *words.split())
            storage.write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **settings})
            theirs, made = of_transformers(tmp_path), load(tmp_path, vocabulary_settings(tmp_path))
            assert [word for word in words.split() if theirs.tokenize(word) != [word]] == lost
            notes = tokenization.normalization_warnings(made, path)
            assert len(notes) == bool(lost) and all(f"{len(lost)} of the vocabulary's 3 words" in note for note in notes)

    @pytest.mark.needs_peer
    def test_settings_that_contradict_a_tokenizer_json(self, tmp_path: Path):
        """As transformers reads the same folder, whose tokenizer.json keeps capitals and accents."""
        path = write_vocabulary(tmp_path, "the", "The", "cafe", "café", "日", "本", "日本")
        storage.write_atomic(tmp_path / "tokenizer.json", load(path).canonical_json)
        for settings, model, words in (
            ({"tokenizer_class": "BertTokenizer"}, {}, "the cafe 日 本"),
            ({"tokenizer_class": "ElectraTokenizerFast", "strip_accents": False}, {"model_type": "electra"}, "the café 日 本"),
            ({"do_lower_case": False, "tokenize_chinese_chars": False}, {"model_type": "bert"}, "The café 日本"),
            (None, {"model_type": "distilbert"}, "the cafe 日 本"),
            (None, {"model_type": "roberta", "tokenizer_class": "BertTokenizer"}, "the cafe 日 本"),
            ({"tokenizer_class": "BertTokenizer"}, {"model_type": "modernbert"}, "The café 日 本"),
            ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, {"model_type": "bert"}, "The café 日 本"),
        ):
            storage.write_json(tmp_path / "config.json", model)
            storage.remove(tmp_path / "tokenizer_config.json")
            if settings is not None:
                storage.write_json(tmp_path / "tokenizer_config.json", settings)
            theirs = of_transformers(tmp_path).tokenize("The café 日本")
            assert tokens(load(tmp_path), "The café 日本") == theirs == words.split()

    def test_a_normalizer_that_does_not_fit_a_sentencepiece_vocabulary(self, tmp_path: Path):
        specification = json.loads(roberta(tmp_path).to_str()) | {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": None}
        words = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "▁Cat", "▁the", "a", "c", "t"]
        specification["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [[word, -1.0] for word in words]}
        specification |= {"added_tokens": [], "post_processor": None, "decoder": {"type": "Metaspace", "replacement": "▁"}}
        storage.write_json(tmp_path / "tokenizer.json", specification)
        assert "as others ('Cat' as 'cat'" in tokenization.normalization_warnings(load(tmp_path), tmp_path)[0]

    def test_bad_files(self, tmp_path: Path):
        path = tmp_path / "vocab.txt"
        for content, message in (
            *((b"", "empty"), (b"\n\n", "empty"), (b"[PAD]\n[UNK]\na\n", "none for: cls .* sep")),
            ("\n".join([*WORDS, "the", "cat"]).encode(), "'the' .*7, 14"),
            ("\n".join(WORDS).encode("utf-16"), "byte 0"),
        ):
            path.write_bytes(content)
            with pytest.raises(DataError, match=message) as caught:
                load(path)
            assert str(path) in str(caught.value)


def roberta(folder: Path, *, added: Sequence[str] = (), special: Sequence[str] = ()) -> Tokenizer:
    """A byte-level tokenizer of RoBERTa's kind, with its frame, which the folder's tokenizer.json has too."""
    words = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in (*words[:4], "<mask>", *special)])
    tokenizer.add_tokens(list(added))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


URL = {"content": "[URL]", "lstrip": True, "rstrip": True, "normalized": False, "single_word": False, "special": True}
FURTHER = "the zzz [URL] cats ZZZ zzzs <m> the"


class TestAddedTokens:
    """Ids of a folder without a tokenizer.json, as BertTokenizer.save_pretrained wrote it until transformers 5."""

    @pytest.mark.parametrize(
        ("files", "size"),
        [
            ({"added_tokens": {"[URL]": 13, "zzz": 14}}, 15),
            ({"added_tokens": {"zzz": 14, "[URL]": 13}, "special_tokens_map": {"additional_special_tokens": ["[URL]"]}}, 15),
            ({"special_tokens_map": {"additional_special_tokens": ["[URL]", "cat"]}}, 14),
            ({"special_tokens_map": {"mask_token": {"content": "<m>", "lstrip": True}}, "added_tokens": {"<m>": 13}}, 14),
            ({"tokenizer_config": {"added_tokens_decoder": {"13": URL, "14": {"content": "zzz", "single_word": True}}}}, 15),
            ({"tokenizer_config": {"added_tokens_decoder": {"7": {"content": "cat", "normalized": True}}}}, 13),
            ({"tokenizer_config": {"do_lower_case": False}, "added_tokens": {"ZZZ": 13, "cat": 7}}, 14),
            ({"tokenizer_config": {"extra_special_tokens": ["[URL]"], "do_lower_case": False}}, 14),
            ({"tokenizer_config": {"added_tokens_decoder": {"13": URL}}, "added_tokens": {"[URL]": 13}}, 14),
        ],
    )
    def test_ids_are_those_of_transformers(self, vocabulary: Path, files: dict[str, Any], size: int):
        folder = vocabulary.parent
        for name, values in (files | {"config": {"model_type": "bert"}}).items():
            kind = {"tokenizer_class": "BertTokenizer"} if name == "tokenizer_config" else {}
            storage.write_json(folder / f"{name}.json", kind | values)
        made, theirs = load(folder, vocabulary_settings(folder)), of_transformers(folder)
        assert made.encode_one(FURTHER) == theirs(FURTHER)["input_ids"]
        assert made.vocab_size == len(theirs) == size
        save(made, folder / "saved")
        again = load(folder / "saved")
        assert again.encode_one(FURTHER) == made.encode_one(FURTHER) and again.vocab_size == size

    @pytest.mark.parametrize("beside", [{"zzz": 16}, {"zzz": 7}, {"cat": 13}, {"zzz": 14, "[URL]": 15}])
    def test_ids_that_the_vocabulary_cannot_give_are_refused(self, vocabulary: Path, beside: dict[str, int]):
        storage.write_json(vocabulary.with_name("added_tokens.json"), beside)
        with pytest.raises(DataError, match=r"vocab\.txt"):
            load(vocabulary.parent)

    def test_beside_a_tokenizer_json(self, tmp_path: Path):
        """PreTrainedTokenizerFast adds what that file lacks, and takes the flags of tokenizer_config.json."""
        roberta(tmp_path, added=["zzz"])
        decoder = {"261": {"content": "zzz", "single_word": True}, "262": {"content": "[URL]", "special": True}}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["@@"]}
        storage.write_json(tmp_path / "tokenizer_config.json", settings | {"added_tokens_decoder": decoder})
        theirs, made, text = of_transformers(tmp_path), load(tmp_path), "a zzz zzzs [URL]@@ b"
        assert made.encode_one(text)[1:-1] == theirs(text, add_special_tokens=False)["input_ids"]
        assert made.vocab_size == len(theirs) == 264
        storage.write_json(tmp_path / "added_tokens.json", {"zzz": 300})
        with pytest.raises(DataError, match=r"tokenizer\.json"):
            load(tmp_path)


class TestTokenizerJson:
    def test_roles_by_name_and_the_frame_it_has_here_and_in_transformers(self, tmp_path: Path):
        roberta(tmp_path)
        made = load(tmp_path / "tokenizer.json")
        assert (made.special.cls, made.special.sep, made.special.mask) == (0, 2, 260)
        assert made.vocab_size == vocab_size_of(tmp_path / "tokenizer.json") == 261
        assert "Roberta" in made.canonical_json
        save(made, tmp_path / "saved")
        theirs = of_transformers(tmp_path / "saved")
        assert theirs("a b", "c")["input_ids"] == [0, *made.encode(["a b"]).ids, 2, 2, *made.encode(["c"]).ids, 2]
        assert theirs("a<mask>")["input_ids"] == made.encode_one("a<mask>") == [0, made.vocabulary()["a"], 260, 2]
        assert load(tmp_path / "saved").fingerprint == made.fingerprint

    @pytest.mark.parametrize("most", [30, 12])
    def test_pairs_have_the_frame_of_the_tokenizer(self, tmp_path: Path, most: int):
        """`<s> A </s></s> B </s>`, truncated as the tokenizers library does."""
        tokenizer = roberta(tmp_path)
        rows = encode_rows(load(tmp_path / "tokenizer.json"), ["two cats"], ["a mat"], max_length=most)
        tokenizer.enable_truncation(most)
        assert rows.ids.tolist() == tokenizer.encode("two cats", "a mat").ids
        assert rows.whole_lengths.tolist() == [17] and rows.ids.tolist().count(2) == 3

    def test_roles_declared_beside_it(self, tmp_path: Path):
        roberta(tmp_path, special=["@@"])
        storage.write_json(tmp_path / "special_tokens_map.json", {"mask_token": "<unk>"})
        storage.write_json(tmp_path / "tokenizer_config.json", {"mask_token": {"content": "@@"}, "pad_token": None})
        assert load(tmp_path).special.mask == 261

    @pytest.mark.parametrize("normalized", [True, False])
    def test_an_added_token_that_normalization_removes(self, normalized: bool, tmp_path: Path):
        """The library would find it everywhere, and never end (huggingface/tokenizers issue 1349)."""
        write_vocabulary(tmp_path, "a", "##b")
        added = {"7": {"content": "\u200c", "normalized": normalized}}
        storage.write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": added})
        if normalized:
            with pytest.raises(DataError, match=r"u200c.*normalized"):
                load(tmp_path)
        else:
            assert load(tmp_path).reading_added.encode(["ab\u200ca"]).ids.tolist() == [5, 6, 7, 5]

    def test_special_tokens_that_cannot_be(self, tmp_path: Path):
        roberta(tmp_path)
        for role, token, message in (
            ("mask", "_", "'_'"),
            ("sep", "<s>", "share an id"),
            ("mask", "@@", r"none for: mask \(@@\)\..*<unk>"),
        ):
            storage.write_json(tmp_path / "special_tokens_map.json", {f"{role}_token": token})
            with pytest.raises(DataError, match=rf"tokenizer\.json.*{message}"):
                load(tmp_path)

    def test_a_frame_is_added_where_there_is_none(self, tmp_path: Path):
        without: dict[str, Any] = {"post_processor": None, "truncation": None, "added_tokens": []}
        storage.write_json(tmp_path / "tokenizer.json", json.loads(roberta(tmp_path).to_str()) | without)
        made = load(tmp_path)
        assert (made.encode_one(""), made.encode_one("<mask>")) == ([0, 2], [0, 260, 2])

    def test_padding_and_truncation_are_the_datasets_business(self, tmp_path: Path):
        tokenizer = roberta(tmp_path)
        tokenizer.enable_truncation(3)
        tokenizer.enable_padding(length=10)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        assert len(load(tmp_path).encode_one("abcdefghijklmnop")) == 18

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"a": 0}', '{"model": {"vocab": {}}}', '{"model": {"vocab": 5}}'])
    def test_other_json_is_refused(self, tmp_path: Path, text: str):
        path = tmp_path / "tokenizer.json"
        path.write_text(text)
        for read in (load, vocab_size_of):
            with pytest.raises(DataError, match=r"tokenizer\.json"):
                read(path)

    def test_what_the_library_fails_at(self, tmp_path: Path, capfd: pytest.CaptureFixture):
        specification = {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "b"}, "added_tokens": []}
        path = tmp_path / "tokenizer.json"
        for changes, message in (
            ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "//////////8="}}, "Precompiled"),
            ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAA="}}, "cannot encode"),
            ({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": None}}, "`unk_id` is missing"),
            ({"model": {"type": "WordLevel", "vocab": {"a": 2**32 - 1, "b": 0}, "unk_token": "b"}}, "10,000,000"),
            ({"model": {"type": "WordLevel", "vocab": {"a": True}, "unk_token": "a"}}, "id True"),
            ({"added_tokens": [{"content": "x"}]}, "added_tokens"),
            ({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 0}, "unk_token": "b"}}, "share the id 0"),
        ):
            path.write_text(json.dumps(specification | changes))
            with pytest.raises(DataError, match=re.escape(message)) as caught:
                load(path)
            assert str(path) in str(caught.value)
            assert capfd.readouterr().err == "", "what a panic prints is not shown"

    def test_other_output_of_the_time_is_not_lost(self, tmp_path: Path, capfd: pytest.CaptureFixture):
        with guarded("x"):
            os.write(2, b"from another thread")
        assert capfd.readouterr().err == "from another thread"
        with pytest.raises(KeyboardInterrupt), guarded("x"):
            raise KeyboardInterrupt


class TestFolder:
    def test_what_was_changed_or_deleted_after_it_was_saved(self, made: Tokenization, tmp_path: Path):
        """An export is a copy of all of them."""
        save(made, tmp_path)
        names = {path.name for path in tmp_path.iterdir()} - {"manifest.json", "tokenizer.json"}
        assert names >= {"tokenizer_config.json", "special_tokens_map.json"}
        for path in (tmp_path / name for name in names):
            content = path.read_bytes()
            path.write_bytes(content + b"\n")
            with pytest.raises(StorageError, match=re.escape(path.name)):
                load(tmp_path)
            path.unlink()
            with pytest.raises(StorageError, match=re.escape(path.name)):
                load(tmp_path)
            path.write_bytes(content)
        assert load(tmp_path).fingerprint == made.fingerprint
        specification = storage.read_json(tmp_path / "tokenizer.json")
        specification["added_tokens"][0]["rstrip"] = True
        storage.write_json(tmp_path / "tokenizer.json", specification)
        with pytest.raises(StorageError, match="fingerprint"):
            load(tmp_path)

    def test_empty_or_absent(self, tmp_path: Path):
        with pytest.raises(StorageError, match="no tokenizer"):
            load(tmp_path)
        for form in ("vocab.json", "sentencepiece.bpe.model"):
            (tmp_path / form).touch()
            with pytest.raises(StorageError, match=rf"{re.escape(form)} .*AutoTokenizer"):
                load(tmp_path)
            (tmp_path / form).unlink()
        for name in ("tokenizer.json", "vocab.txt"):
            with pytest.raises(StorageError, match="no such file"):
                load(tmp_path / "nowhere" / name)


@pytest.mark.parametrize(
    ("name", "settings", "corpus"),
    [
        ("bert_base_uncased_vocab.txt", {"lowercase": True, "strip_accents": True}, "en/wikitext2_train.txt.gz"),
        ("koelectra_vocab_32200.txt", {}, "ko/nsmc_reviews.txt.gz"),
        ("kcbert_vocab.txt", {}, "ko/nsmc_reviews.txt.gz"),
    ],
)
def test_ids_of_real_text(real_data: Path, name: str, settings: dict[str, bool], corpus: str):
    """Two judges: transformers, and Google's own steps in Python, which transformers keeps, without the tokenizers library."""
    transformers = pytest.importorskip("transformers")
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    path = real_data / "vocab" / name
    with gzip.open(real_data / corpus, "rt", encoding="utf-8") as stream:
        lines = [line.rstrip("\n") for line in itertools.islice(stream, 400)]
    lines += ["Ünïcode 日本語 한국어!", "it's well-known…", "ㅋㅋㅋ 재밌다~~", "x" * 101, ""]
    options = {"do_lower_case": settings.get("lowercase", False), "strip_accents": settings.get("strip_accents", False)}
    google, theirs = legacy.BertTokenizerLegacy(str(path), **options), transformers.BertTokenizer(vocab=str(path), **options)
    made = load(path, TokenizerConfig.model_validate(settings))
    assert tokenization.normalization_warnings(made, path) == []
    found = as_lists(made.encode(lines))
    assert found == theirs(lines, add_special_tokens=False)["input_ids"]
    assert found == [google.convert_tokens_to_ids(google.tokenize(line)) for line in lines]
    assert [made.encode_one(line) for line in lines] == theirs(lines)["input_ids"]


def rules(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


A_TO_MANY = replacing({"String": "a"}, "a" * 100)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", rules(A_TO_MANY, {"type": "NFC"}, rules(A_TO_MANY))),
        *(("normalizer", rules(*[replacing({"Regex": regex}, new)] * 10)) for regex, new in (("a?", "b"), (".", "bb"))),
        ("decoder", {"type": "Sequence", "decoders": [A_TO_MANY, A_TO_MANY]}),
    ],
)
def test_rules_that_would_fill_the_memory(vocabulary: Path, tmp_path: Path, part: str, value: dict[str, Any]):
    specification = json.loads(load(vocabulary).canonical_json)
    (tmp_path / "grows.json").write_text(json.dumps({**specification, part: value}))
    with pytest.raises(DataError, match=part):
        load(tmp_path / "grows.json")
    usual = rules(replacing({"Regex": " {2,}"}, " "), A_TO_MANY)
    (tmp_path / "usual.json").write_text(json.dumps({**specification, "normalizer": usual}))
    load(tmp_path / "usual.json")


def test_a_post_processor_without_the_tokens_it_names(vocabulary: Path, tmp_path: Path):
    """On which the library panics."""
    save(load(vocabulary), tmp_path)
    specification = json.loads((tmp_path / "tokenizer.json").read_text())
    specification["post_processor"]["pair"][0]["SpecialToken"]["id"] = "[X]"
    (tmp_path / "tokenizer.json").write_text(json.dumps(specification))
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        load(tmp_path)


def test_a_pattern_that_takes_too_long_on_a_text(vocabulary: Path, tmp_path: Path):
    specification = json.loads(load(vocabulary).canonical_json)
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "slow.json").write_text(json.dumps({**specification, "pre_tokenizer": split}))
    made, text = load(tmp_path / "slow.json"), "a" * 40 + "b"
    for encode in (lambda: made.encode([text]), lambda: made.encode_one(text), lambda: made.encode_with_offsets([text])):
        with pytest.raises(DataError, match="retry-limit"):
            encode()


def test_texts_on_which_a_pattern_takes_too_long_are_named():
    """Alternatives that match alike take exponential time (OWASP, "Regular expression Denial of Service"); Oniguruma's limit
    is for one place in a text, and a text has many."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a|a)+$"), "isolated")
    texts = ["b", f"{'a' * 19}c" * 10]
    with pytest.warns(match=r"'aaaa.*\(a\|a\)\+\$"), watched(tokenizer, texts, seconds=0.1):
        tokenizer.encode_batch(texts)


# -- what `save` writes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(made: Tokenization, tmp_path: Path) -> Path:
    save(made, tmp_path / "tokenizer", inputs={"corpus": "abc", "sizes": [1, 2]}, model_max_length=64)
    return tmp_path / "tokenizer"


@pytest.fixture(params=[False, True], ids=["alone", "beside a model"])
def theirs(request: pytest.FixtureRequest, folder: Path) -> Any:
    if request.param:
        storage.write_json(folder / "config.json", {"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    return of_transformers(folder)


def test_transformers_gives_the_same_ids_and_decodes_alike(made: Tokenization, theirs: Any):
    texts = ["", " ", *make_texts(100, seed=4), "Ünïcode 龘 👍🏽 　x"]
    expected = theirs(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    assert as_lists(made.encode(texts)) == expected
    for text in (texts[2], "the [MASK] cat", "영화[MASK]", "[MASK]"):
        assert theirs(text)["input_ids"] == made.encode_one(text)
    assert len(theirs) == made.vocab_size
    assert [theirs.pad_token, theirs.unk_token, theirs.cls_token, theirs.sep_token, theirs.mask_token] == list(TOKENS)
    assert theirs.all_special_ids and set(theirs.all_special_ids) == set(made.special)
    for ids in map(made.encode_one, (*make_texts(50, seed=6), "the [MASK] cat , isn't . it")):
        assert theirs.decode(ids, skip_special_tokens=True) == made.decode(ids)


def test_transformers_frames_pairs_pads_and_cuts(made: Tokenization, theirs: Any):
    cls, sep, pad = made.special.cls, made.special.sep, made.special.pad
    first, second = as_lists(made.encode(["the cat", "영화는"]))
    pair, padded = theirs("the cat", "영화는"), theirs(["the cat", ""], padding=True)
    assert pair["input_ids"] == [cls, *first, sep, *second, sep]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert padded["input_ids"][1] == [cls, sep, *[pad] * len(first)]
    assert padded["attention_mask"][1] == [1, 1, *[0] * len(first)]
    assert theirs.model_max_length == 64
    assert len(theirs("the cat was good " * 50, truncation=True)["input_ids"]) == 64


def test_what_is_in_the_folder_the_same_each_time(made: Tokenization, folder: Path, tmp_path: Path):
    names = {path.name for path in folder.iterdir()}
    expected = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "manifest.json"}
    assert names == expected | ({"vocab.txt"} if made.algorithm == "WordPiece" else set())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["padding_side"], settings["tokenizer_class"]) == ("right", "PreTrainedTokenizerFast")
    assert ("do_lower_case" in settings) == (made.algorithm == "WordPiece"), "of BERT's normalizer"
    if made.algorithm == "WordPiece":
        assert storage.read_text(folder / "vocab.txt").split("\n")[:-1] == list(made.vocabulary())
    found = storage.read_json(folder / "manifest.json")
    assert found.pop("files").keys() == names - {"manifest.json", "tokenizer.json"}
    described = {"algorithm": made.algorithm, "fingerprint": made.fingerprint, "vocab_size": made.vocab_size}
    inputs = {"corpus": "abc", "sizes": [1, 2]}
    assert found == {**described, "format_version": 1, "inputs": inputs, "special": asdict(made.special)}
    save(tokenization.load(folder), tmp_path / "again", inputs=inputs, model_max_length=64)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_the_manifest_is_written_last_and_removed_first(made: Tokenization, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storage, "write_json", Mock(side_effect=StorageError("disk full")))
    with pytest.raises(StorageError, match="disk full"):
        save(made, folder)
    assert load_manifest(folder) is None


def test_a_folder_taken_over_by_another_algorithm_keeps_no_vocabulary(trained: dict[str, Tokenization], tmp_path: Path):
    save(trained["wordpiece"], tmp_path)
    save(trained["bpe"], tmp_path)
    assert not (tmp_path / "vocab.txt").exists()
    assert tokenization.load(tmp_path).fingerprint == trained["bpe"].fingerprint


def test_no_manifest_and_one_of_another_version(tmp_path: Path):
    assert load_manifest(tmp_path) is load_manifest(tmp_path / "nowhere") is None
    storage.write_json(tmp_path / "manifest.json", {"format_version": 99})
    with pytest.raises(StorageError, match="format version 99"):
        load_manifest(tmp_path)


@pytest.mark.parametrize("changed", [*itertools.product([False, True], repeat=3)])
def test_of_a_vocabulary_alone_the_settings_say_how_it_reads_text(trained: dict, tmp_path: Path, changed: tuple[bool, ...]):
    """BERT's defaults would make Hangul letters of its syllables, which are unknown."""
    save(trained["wordpiece"], tmp_path / "vocabulary")
    lowercase, strip_accents, split_cjk = changed
    config = TokenizerConfig(lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk)
    made = tokenization.load(tmp_path / "vocabulary" / "vocab.txt", config)
    save(made, tmp_path / "saved")
    for name in ("tokenizer.json", "manifest.json"):
        (tmp_path / "saved" / name).unlink()
    assert vocabulary_settings(tmp_path / "saved") == config
    theirs = pytest.importorskip("transformers").BertTokenizer.from_pretrained(tmp_path / "saved")
    texts = [*make_texts(50, seed=4), "영화는 정말 재미있다", "Ünïcode The山川"]
    assert theirs(texts, add_special_tokens=False)["input_ids"] == as_lists(made.encode(texts))
