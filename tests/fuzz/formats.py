"""Every kind of file that somebody else may have written: small ones of each, and the public function that reads it.

They are made here, with our own writers or with the library that the format is of.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import sentencepiece
import zstandard
from mutations import Kind
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

import bundles
from tfrecord_files import frame, serialize
from tpulm import corpus, storage, tokenization, workfolder
from tpulm.cloud import settings as cloud_settings
from tpulm.config import CorpusConfig, ModelConfig, RunConfig, SourceConfig, canonical_json, load
from tpulm.convert.heads import Head, spec_of
from tpulm.convert.huggingface import load_model, save_model
from tpulm.convert.importing import import_model
from tpulm.convert.tensorbundle import read_table
from tpulm.dataset import load_manifest
from tpulm.dataset.importing import import_tfrecords
from tpulm.dataset.pretraining_records import read_rows, shape_of
from tpulm.dataset.tfrecord import read_records, survey
from tpulm.labelled import LabelSet, read_examples
from tpulm.nn.params import map_specs
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Vocabulary

LINES = 3 * [
    *("the old cat sees a dog", "영화 정말 재미있다", "吾輩は猫である。"),
    *("a and the cat, again.", "그 배우 좋다 ㅋㅋ 1 2 3"),
]
ROWS: list[dict[str, Any]] = [
    {"text": line, "label": number % 2, "meta": {"body": line, "n": [number]}} for number, line in enumerate(LINES)
]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENS += ["the", "old", "cat", "sees", "a", "and", "##s", ".", ",", "영화", "##다"]
LENGTH = 16

Read = Callable[[Path], Any]


class Seed(NamedTuple):
    """A file to be damaged. `content` is what is damaged and `wrapped` makes the file of it: a checksum, say, that fits."""

    file: Path
    read: Callable[[], Any]
    kind: Kind
    content: bytes
    wrapped: Callable[[bytes], bytes] = bytes

    @property
    def origin(self) -> str:
        return self.file.name + ("" if self.wrapped is bytes else " (inside)")


def _seed(file: Path, read: Read, kind: Kind, content: bytes | None = None, wrapped: Callable[[bytes], bytes] = bytes) -> Seed:
    """`read` is called with the file; what is damaged is all of it, unless its content is given."""
    return Seed(file, partial(read, file), kind, file.read_bytes() if content is None else content, wrapped)


def _written(file: Path, content: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def _write_vocabulary(folder: Path, tokens: list[str] = TOKENS) -> Path:
    return _written(folder / "vocab.txt", "".join(f"{token}\n" for token in tokens))


def _json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# -- tokenizers --------------------------------------------------------------------------------------------------------------


def _use(made: tokenization.Tokenization) -> None:
    """What is accepted must then encode any text."""
    made.encode([*LINES[:4], "\u3000①ﾊﾟ e\u0301 👨‍👩‍👧 \U000f0000\n"])
    made.decode(made.encode_one("the old 猫"))
    assert made.fingerprint and made.vocabulary() and made.word_starts().size == made.vocab_size


def _read_tokenizer(path: Path) -> None:
    if path.suffix == ".json":
        tokenization.vocab_size_of(path)
    _use(tokenization.load(path))


def _vocabularies(folder: Path) -> Iterator[Seed]:
    for name, end in (("vocab.txt", "\n"), ("windows.txt", "\r\n")):
        yield _seed(_written(folder / name, "".join(token + end for token in TOKENS)), _read_tokenizer, "text")


def _tokenizer_files(folder: Path) -> Iterator[Seed]:
    byte_level = Tokenizer(models.BPE({**_GPT2, "[PAD]": 7, "[UNK]": 8, "[CLS]": 9, "[SEP]": 10, "[MASK]": 11}, _MERGES))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    wordpiece = Tokenizer(models.WordPiece({token: index for index, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    wordpiece.normalizer = normalizers.BertNormalizer(lowercase=True)
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.decoder = decoders.WordPiece()
    for name, made in (("bpe", byte_level), ("wordpiece", wordpiece)):
        made.add_special_tokens([AddedToken(token, normalized=False) for token in TOKENS[:5]])
        yield _seed(_written(folder / name / "tokenizer.json", made.to_str(pretty=name == "bpe")), _read_tokenizer, "json")
    unigram = _trained_sentencepiece(folder, "unigram", **_sentencepiece_rules(folder))
    yield _seed(_written(folder / "unigram.json", tokenization.load(unigram).canonical_json), _read_tokenizer, "json")


def _trained_sentencepiece(folder: Path, name: str, **options: Any) -> Path:
    out = io.BytesIO()
    options |= {"model_type": name, "vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES * 4), model_writer=out, **options)  # type: ignore[attr-defined]
    return _written(folder / f"{name}.model", out.getvalue())


def _sentencepiece_rules(folder: Path) -> dict[str, Any]:
    """A normalization of two rules: the usual one takes 240 KB of compiled table."""
    return {"normalization_rule_tsv": str(_written(folder / "rules.tsv", "FF21\t41\n2460\t31\n"))}


def _sentencepiece_models(folder: Path) -> Iterator[Seed]:
    for name, options in {"unigram": _sentencepiece_rules(folder), "bpe": {"normalization_rule_name": "identity"}}.items():
        yield _seed(_trained_sentencepiece(folder, name, **options), _read_tokenizer, "binary")


_GPT2 = {"l": 0, "o": 1, "w": 2, "Ġ": 3, "Ġl": 4, "lo": 5, "<|endoftext|>": 6}
_MERGES = [("Ġ", "l"), ("l", "o")]


def _gpt2_files(folder: Path) -> Iterator[Seed]:
    settings = {"added_tokens_decoder": {"8": {"content": "<|stop|>", "special": True}}, "add_prefix_space": True}
    files = {
        "vocab.json": json.dumps(_GPT2, ensure_ascii=False),
        "merges.txt": "#version: 0.2\nĠ l\nl o\n",
        "added_tokens.json": '{"<|pad|>": 7}',
        "config.json": '{"eos_token_id": 6, "bos_token_id": 6}',
        "tokenizer_config.json": json.dumps(settings | {"eos_token": "<|endoftext|>", "add_bos_token": False}),
    }
    for path in [_written(folder / name, content) for name, content in files.items()]:
        kind: Kind = "json" if path.suffix == ".json" else "text"
        yield _seed(path, lambda path: _use(tokenization.load_causal(folder)), kind)


def _tokenizer_settings(folder: Path) -> Iterator[Seed]:
    """tokenizer_config.json and special_tokens_map.json, beside a tokenizer.json, and beside a bare vocab.txt."""
    whole, bare = folder / "whole", folder / "bare"
    made = tokenization.load(_write_vocabulary(bare))
    tokenization.save(made, whole)
    settings = json.loads((whole / "tokenizer_config.json").read_text())
    settings |= {"unk_token": {"content": "[UNK]", "lstrip": False}, "bos_token": None, "mecab_kwargs": None}
    files = {"tokenizer_config.json": json.dumps(settings)}
    files |= {"special_tokens_map.json": (whole / "special_tokens_map.json").read_text()}
    for place in (whole, bare):
        (place / "manifest.json").unlink(missing_ok=True)
        paths = [_written(place / name, content) for name, content in files.items()]
        _save_model(place, architecture="bert")
        for path in paths:
            yield _seed(path, lambda path: _use(load_model(path.parent).tokenization), "json")


# -- models ------------------------------------------------------------------------------------------------------------------


def _save_model(folder: Path, *, head: Head = "masked", **settings: Any) -> None:
    """config.json and model.safetensors of a small model, into a folder that has its tokenizer."""
    made = tokenization.load(folder)
    sizes = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8, "max_positions": 16}
    config = ModelConfig.model_validate(sizes | settings)
    draw = np.random.default_rng(7).normal
    leaves = spec_of(config, head, vocab_size=len(TOKENS))
    params: Any = map_specs(lambda leaf: draw(0.0, 0.3, leaf.shape).astype(np.float32), leaves)
    saved, tokenizer = (folder.with_name(f"{folder.name}.{what}") for what in ("model", "tokenizer"))
    tokenization.save(made, tokenizer)
    save_model(saved, params, config, vocab_size=made.vocab_size, tokenization_folder=tokenizer, tokenizer=made)
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((saved / file).read_bytes())
    for path in (saved, tokenizer):
        storage.remove(path)


_LLAMA = {"architecture": "decoder", "norm_position": "pre", "norm": "rms", "biases": False, "feed_forward": "gated"}
_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": {"architecture": "bert"},
    "electra": {"architecture": "electra", "embedding_size": 4, "head": "detection"},
    "gpt2": {"architecture": "decoder", "norm_position": "pre", "token_types": 0, "head": "causal"},
    "llama": {**_LLAMA, "token_types": 0, "positions": "rotary", "activation": "silu", "dropout": 0.0, "head": "causal"},
}


def _convert(source: Path, target: Path) -> None:
    storage.remove(target)
    import_model(source, target)


def _models(folder: Path) -> Iterator[tuple[Path, Read]]:
    """Folders, and what reads one of their files, with the others."""
    for name, settings in _ARCHITECTURES.items():
        place = folder / name
        tokenization.save(tokenization.load(_write_vocabulary(place)), place)
        (place / "manifest.json").unlink()
        _save_model(place, **settings)
        if name == "gpt2":
            yield place, lambda path: _convert(path.parent, folder / "imported")
        else:
            yield place, lambda path: load_model(path.parent)


def _configs(folder: Path) -> Iterator[Seed]:
    for place, read in _models(folder):
        yield _seed(place / "config.json", read, "json")


def _safetensors(folder: Path) -> Iterator[Seed]:
    for place, read in _models(folder):
        seed = _seed(place / "model.safetensors", read, "binary")
        yield seed
        (size,) = struct.unpack("<Q", seed.content[:8])
        header, tensors = seed.content[8 : 8 + size], seed.content[8 + size :]

        def with_length(header: bytes, tensors: bytes = tensors) -> bytes:
            return struct.pack("<Q", len(header)) + header + tensors

        yield seed._replace(kind="json", content=header.rstrip(), wrapped=with_length)


_BERT_CONFIG = {
    "vocab_size": 16, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 40,
    "max_position_embeddings": 20, "type_vocab_size": 2, "hidden_act": "gelu",
}  # fmt: skip


def _checkpoints(folder: Path) -> Iterator[tuple[Path, Read]]:
    bert = bundles.drawn(bundles.bert(layers=1, vocab=16))
    electra = bundles.drawn(bundles.electra(size=64, small=64, embedding=64, inner=8), moments=False)
    for name, tensors in {"bert": bert, "electra": electra}.items():
        prefix = bundles.write(folder / name / "model.ckpt", tensors)
        tokens = [*TOKENS, *(f"word{number}" for number in range(60 - len(TOKENS)))] if name == "electra" else TOKENS
        _write_vocabulary(prefix.parent, tokens)
        config = _BERT_CONFIG if name == "bert" else {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 2}
        _written(prefix.with_name("bert_config.json"), json.dumps(config))
        yield prefix, lambda path: _convert(path.with_name("model.ckpt"), folder / "imported")


def _tf1_checkpoints(folder: Path) -> Iterator[Seed]:
    for prefix, read in _checkpoints(folder):
        index = prefix.with_name("model.ckpt.index")
        yield _seed(index, read, "binary")
        yield _seed(prefix.with_name("model.ckpt.data-00000-of-00001"), read, "binary")
        _written(prefix.with_name("checkpoint"), 'model_checkpoint_path: "model.ckpt"\n')
        entries = read_table(index.read_bytes(), "")
        # One entry after another, so that a change stays in one, and the table is written with the right checksums.
        for key in list(entries)[:4]:

            def wrapped(content: bytes, key: bytes = key, entries: dict[bytes, bytes] = entries) -> bytes:
                return bundles.table({**entries, key: content})

            yield _seed(index, read, "binary", entries[key], wrapped)


def _bert_configs(folder: Path) -> Iterator[Seed]:
    for prefix, read in _checkpoints(folder):
        yield _seed(prefix.with_name("bert_config.json"), read, "json")


# -- records and corpora -----------------------------------------------------------------------------------------------------


def _row(number: int) -> dict[str, list[int]]:
    ids = [2, 5 + number % 9, 6, 3, 7, 8, 3]
    padding = [0] * (LENGTH - len(ids))
    mask, types = [1] * len(ids), [0, 0, 0, 0, 1, 1, 1]
    return {"input_ids": ids + padding, "input_mask": mask + padding, "segment_ids": types + padding}


def _read_records(path: Path, kind: Any) -> None:
    survey(str(path), range_bytes=1 << 20)
    if records := list(read_records(str(path))):
        special = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
        read_rows(records, str(path), shape_of(records[0], str(path), kind), Vocabulary(len(TOKENS), special))


def _tfrecords(folder: Path) -> Iterator[Seed]:
    masked = {"masked_lm_positions": [1, 2, 0], "masked_lm_ids": [5, 6, 0], "masked_lm_weights": [1.0, 1.0, 0.0]}
    for kind, features in {"electra": _row(0), "bert": _row(0) | masked | {"next_sentence_labels": [1]}}.items():
        read, one = partial(_read_records, kind=kind), serialize(features)
        path = _written(folder / f"{kind}.tfrecord", frame(one) * 3)
        yield _seed(path, read, "binary")
        yield _seed(path, read, "binary", one, lambda content, one=one: frame(one) + frame(content))


def _read_corpus(path: Path, **settings: Any) -> None:
    for batch in corpus.read_texts([SourceConfig(path=str(path), **settings)]):
        assert all(text.encode() is not None for text in batch)


_read_skipping = partial(_read_corpus, on_error="skip")
_PACKED: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
_PACKED["zst"] = zstandard.ZstdCompressor().compress


def _texts(folder: Path) -> Iterator[Seed]:
    text = "\n".join(LINES)
    for suffix, pack in _PACKED.items():
        path = _written(folder / f"text.txt.{suffix}", pack(text.encode()))
        yield _seed(path, _read_corpus, "binary")
        yield _seed(path, partial(_read_corpus, documents="paragraph"), "text", text.encode(), pack)
    for encoding in ("utf-16", "cp949", "iso2022_jp"):
        path = _written(folder / f"{encoding}.txt", text.replace("ㅋ", "").encode(encoding, "ignore"))
        yield _seed(path, partial(_read_corpus, encoding=encoding), "binary")


def _jsonl(folder: Path) -> Iterator[Seed]:
    path = _written(folder / "text.jsonl", _json_lines(ROWS))
    yield _seed(path, _read_corpus, "json")
    yield _seed(path, partial(_read_skipping, text_field="meta.body"), "json")


def _tables(folder: Path) -> Iterator[Seed]:
    rows = "".join(f'{line.replace(",", "")},"a ""quote"", {number}"\n' for number, line in enumerate(LINES))
    csv = _written(folder / "text.csv", f"text,label\n{rows}")
    tsv = _written(folder / "text.tsv", "id\ttext\n" + "".join(f"{number}\t{line}\n" for number, line in enumerate(LINES)))
    for path in (csv, tsv):
        yield _seed(path, _read_corpus, "text")
        yield _seed(path, _read_skipping, "text")


def _parquet(folder: Path) -> Iterator[Seed]:
    table = pa.Table.from_pylist(ROWS)
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    packed = {"snappy": {"compression": "snappy"}, "gzip": {"compression": "gzip", "data_page_version": "2.0"}}
    for name, options in {"plain": plain, **packed}.items():
        path = folder / f"{name}.parquet"
        parquet.write_table(table, path, **options)  # type: ignore[arg-type]
        yield _seed(path, partial(_read_corpus, text_field="meta.body" if name == "snappy" else "text"), "binary")


_PAGE = "<page><title>Bern</title><ns>0</ns><revision><id>1</id><model>wikitext</model><text>'''Bern''' is {{a|b}} the [[city]].\n* a\n</text></revision></page>\n"  # fmt: skip  # noqa: E501
_DUMP = f"""<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">
<siteinfo><namespaces><namespace key="0" /><namespace key="6">Datei</namespace></namespaces></siteinfo>
{_PAGE}<page><title>A</title><ns>0</ns><redirect title="x" /></page>
{_PAGE.replace("Bern", "서울")}{_PAGE.replace("<ns>0", "<ns>1")}</mediawiki>
"""


def _wikipedia(folder: Path) -> Iterator[Seed]:
    path = _written(folder / "pages-articles.xml.bz2", bz2.compress(_DUMP.encode()))
    yield _seed(path, _read_corpus, "binary")
    for read in (_read_corpus, _read_skipping):
        yield _seed(path, read, "text", _DUMP.encode(), bz2.compress)


def _read_labelled(path: Path) -> None:
    examples = read_examples(path)
    LabelSet.of(examples).encode(examples)


def _labelled(folder: Path) -> Iterator[Seed]:
    tsv = "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS)
    csv = "text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in ROWS)
    yield _seed(_written(folder / "rows.tsv", tsv), _read_labelled, "text")
    yield _seed(_written(folder / "rows.csv", csv), _read_labelled, "text")
    yield _seed(_written(folder / "rows.jsonl", _json_lines(ROWS)), _read_labelled, "json")
    parquet.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet")
    yield _seed(folder / "rows.parquet", _read_labelled, "binary")


# -- what people write for tpulm itself, and what it wrote -------------------------------------------------------------------


_RUN = """extends = "base.toml"
name = "mine"
language = "ko"

[corpus]
sources = ["texts/*.txt", "more"]
holdout_fraction = 0.02
[corpus.cleaning]
languages = ["ko"]

[tokenizer]
vocab_size = 8000
lowercase = true

[train]
steps = 300
[train.optimizer]
learning_rate = 1e-3
"""


def _run_files(folder: Path) -> Iterator[Seed]:
    base = _written(folder / "base.toml", 'extends = "bert-mini"\n[train]\nbatch_size = 64\n[data]\nsequence_length = 64\n')
    run = _written(folder / "run.toml", _RUN)
    resolved = _written(folder / "run.json", canonical_json(load(run)))

    def read(path: Path) -> None:
        json.loads(canonical_json(load(run if path == base else path)), parse_constant=lambda text: 1 / 0)

    for path in (run, base, resolved):
        yield _seed(path, read, "json" if path == resolved else "toml")


_CLOUD = """project = "my-project"
accelerator = "v3-8"
zones = ["us-central1-a"]
bucket = "my-project-tpulm"
spot = true
budget = 20.0
deadline_hours = 12
network = "default"
secrets = {HF_TOKEN = "hf-token", KEY = "gs://my-project-tpulm/key"}
"""


def _cloud_files(folder: Path) -> Iterator[Seed]:
    yield _seed(_written(folder / "cloud.toml", _CLOUD), partial(cloud_settings.load, project="my-project"), "toml")


def _work_folders(folder: Path) -> Iterator[Seed]:
    vocabulary, workdir = tokenization.load(_write_vocabulary(folder)), folder / "work"
    records = _written(folder / "a.tfrecord", b"".join(frame(serialize(_row(number))) for number in range(9)))
    texts = _written(folder / "a.txt", "\n".join(f"{line} {number}" for number, line in enumerate(LINES)))
    import_tfrecords([str(records)], workdir, kind="electra", tokenizer=vocabulary, holdout_fraction=0.3)
    sources = CorpusConfig.model_validate({"sources": [str(texts)], "holdout_fraction": 0.3})
    corpus.scatter(sources, workdir, part_bytes=10_000)
    config = RunConfig.model_validate({"data": {"sequence_length": LENGTH}, "train": {"steps": 10}})
    storage.write_atomic(workdir / "run.json", canonical_json(config))
    workfolder.write_result(workdir, "export", {"step": 10})

    def read(path: Path) -> None:
        workfolder.open_run(workdir)
        workfolder.read_result(workdir, "export")
        corpus.load_manifest(workdir)
        corpus.load_removed(workdir)
        load_manifest(workdir)
        _use(tokenization.load(workdir / "tokenizer"))
        workfolder.begin(config, workdir)  # forgets results of a training that is not there
        workfolder.write_result(workdir, "export", {"step": 10})

    names = ["run.json", "results/export.json", "corpus/manifest.json", "dataset/manifest.json", "dataset/inputs.json"]
    names += ["dataset/train/manifest.json", "dataset/holdout/manifest.json", "tokenizer/manifest.json"]
    for name in [*names, "tokenizer/tokenizer.json", "corpus/removed.json"]:
        yield _seed(workdir / name, read, "json")


# Each writes its seeds into a folder, which is empty.
FORMATS: dict[str, Callable[[Path], Iterator[Seed]]] = {
    "vocab.txt": _vocabularies,
    "tokenizer.json": _tokenizer_files,
    "sentencepiece": _sentencepiece_models,
    "gpt2-files": _gpt2_files,
    "tokenizer-config": _tokenizer_settings,
    "config.json": _configs,
    "safetensors": _safetensors,
    "tf1-checkpoint": _tf1_checkpoints,
    "bert-config": _bert_configs,
    "tfrecord": _tfrecords,
    "run-file": _run_files,
    "cloud-file": _cloud_files,
    "text": _texts,
    "jsonl": _jsonl,
    "csv-tsv": _tables,
    "parquet": _parquet,
    "wikipedia": _wikipedia,
    "labelled": _labelled,
    "work-folder": _work_folders,
}
