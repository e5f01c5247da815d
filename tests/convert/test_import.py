"""`tpulm import`: what becomes of each kind of source, what it refuses, and what it advises to do with the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from outputs import assert_same_leaves
from test_stock_classes import GPT2, LLAMA, MODELS

import bundles
from command_line import invoke
from tpulm.convert.config_json import HeadConfig
from tpulm.convert.heads import Head, spec_of
from tpulm.convert.huggingface import load_model
from tpulm.convert.importing import import_model
from tpulm.convert.tensorbundle import Bundle
from tpulm.errors import ConfigError, DataError, StorageError
from tpulm.nn.params import map_specs

KINDS: dict[str, dict[str, Any]] = {"bert": {}, "megatron": {"norm_position": "pre"}, "gpt2": GPT2, "llama": LLAMA}
KINDS |= {"bert for pairs": {"next_sentence": True}, "electra": {"architecture": "electra", "embedding_size": 12}}


@pytest.fixture
def source(make_small: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A random model as a folder of Hugging Face's, by default a BERT."""
    return make_small(**KINDS[getattr(request, "param", "bert")]).save(tmp_path / "source")


def test_a_checkpoint_of_google_s_code(real_data: Path, tmp_path: Path):
    prefix, out = real_data / "fixtures" / "bert_tf1_checkpoint" / "bert_model.ckpt", tmp_path / "out"
    done = invoke("import", prefix, "--to", out, "--json", code=0)
    imported = json.loads(done.stdout)
    assert [imported[name] for name in ("parameters", "vocab_size", "step", "dropped")] == [701, 15, 20, []]
    assert imported["moments"] and imported["lowercase"] and "moments in optimizer.safetensors" in done.stderr
    tensors = {name: one.read() for name, one in Bundle(prefix).items()}
    assert_same_leaves(safetensors.numpy.load_file(out / "model.safetensors"), bundles.as_transformers(tensors))
    filled = invoke("fill-mask", out, "all work and no [MASK]", "--top", 2, "--json")
    assert len(json.loads(filled.stdout)["all work and no [MASK]"]) == 2
    with pytest.raises(ConfigError, match=r"'bert_model\.ckpt'"):
        import_model(prefix.with_name("bert_modl.ckpt"), tmp_path / "other")


@pytest.mark.parametrize("kind", KINDS | MODELS)
def test_an_export_comes_back(tmp_path: Path, make_small: Any, kind: str):
    """Settings and parameters as they were, also after an import; and written again they give the same bytes."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    small = make_small(**(KINDS | MODELS)[kind])
    imported, loaded = import_model(small.save(first), second), load_model(second)
    assert (loaded.config, loaded.vocab_size) == (small.config, small.tokenizer.vocab_size)
    tensors = safetensors.numpy.load_file(second / "model.safetensors")
    assert imported.parameters == sum(tensor.size for tensor in tensors.values())
    if small.config.architecture != "modernbert":  # whose first attention has no norm, where ours has one that changes nothing
        assert_same_leaves(loaded.params, small.params)
    small._replace(params=loaded.params, config=loaded.config).save(third)
    assert {path.name for path in second.iterdir()} == {path.name for path in first.iterdir()} | {"import.json"}
    assert (second / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    for path in first.iterdir():
        assert (third / path.name).read_bytes() == path.read_bytes()


def test_pickled_weights_are_never_opened(tmp_path: Path):
    names = ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "tf_model.h5", "flax_model.msgpack", "model.pt"]
    for number, name in enumerate(names):
        file = tmp_path / str(number) / name
        file.parent.mkdir()
        file.write_bytes(b"\x80\x04cos\nsystem\n")
        for source in (file.parent, file):
            with pytest.raises(ConfigError, match=name):
                import_model(source, tmp_path / "out")


def test_what_is_no_model_is_refused_with_what_to_do(tmp_path: Path, source: Path):
    for named, target, options, message in (
        (tmp_path / "nowhere", "out", {}, "nowhere"),
        (tmp_path, "out", {}, r"model\.safetensors, config\.json"),
        (source, "out", {"kind": "bert", "strip_accents": False}, "--strip-accents/--keep-accents, --kind"),
        (source / "model.safetensors", "out", {}, r"model\.safetensors is a file"),
        (source, "source/vocab.txt", {}, r"vocab\.txt is a file"),
        (source, "source", {}, "not empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            import_model(named, tmp_path / target, **options)
    (source / "model.safetensors").rename(source / "model-00001-of-00002.safetensors")
    second = '{"weight_map": {"x": "model-00002-of-00002.safetensors"}}'
    for content, error, message in (("{}", DataError, "weight_map"), (second, StorageError, "model-00002-of-00002")):
        (source / "model.safetensors.index.json").write_text(content)
        with pytest.raises(error, match=message):
            import_model(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", ["llama"], indirect=True)
def test_a_tokenizer_that_only_transformers_reads(tmp_path: Path, source: Path):
    for name in ("tokenizer.json", "vocab.txt"):
        (source / name).unlink()
    (source / "tokenizer.model").write_bytes(b"SentencePiece")
    imported = import_model(source, tmp_path / "out")
    assert "transformers reads it, tpulm's own commands do not" in imported.notes[0]
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == b"SentencePiece"
    with pytest.raises(ConfigError, match=r"tokenizer\.model"):
        load_model(tmp_path / "out")


@pytest.mark.parametrize("source", ["gpt2"], indirect=True)
def test_a_vocabulary_that_drops_characters_is_noted(tmp_path: Path, source: Path):
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        (source / name).unlink()
    characters = [chr(number) for number in (*range(0x21, 0x7F), 0x120) if chr(number) not in "hx"][-60:]
    model = {"type": "BPE", "vocab": {c: n for n, c in enumerate(characters)}, "merges": [], "unk_token": None}
    pre_tokenizer = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {"version": "1.0", "model": model, "pre_tokenizer": pre_tokenizer, "added_tokens": []}
    (source / "tokenizer.json").write_text(json.dumps(whole))
    (note,) = import_model(source, tmp_path / "out").notes
    assert "lacks 196 of the 256 bytes" in note and "such as h x A E é" in note


HINTS: dict[str, tuple[str, Head, HeadConfig | None]] = {
    "fill-mask OUT": ("bert", "masked", None),
    "generate OUT": ("gpt2", "causal", None),
    "finetune OUT --train": ("electra", "detection", None),
    "finetune OUT --train train.tsv": ("bert", "embedding", None),
    "embed OUT": ("bert", "embedding", HeadConfig((), pooling="mean")),
    "classify OUT": ("bert", "classification", HeadConfig(("a", "b"))),
    'classify OUT "…?" --context': ("bert", "spans", HeadConfig(())),
    'classify OUT "…?" --choice': ("bert", "choice", HeadConfig(())),
}


@pytest.mark.parametrize("hint", list(HINTS))
def test_the_hint_fits_the_model(tmp_path: Path, make_small: Any, hint: str):
    kind, head, head_config = HINTS[hint]
    small = make_small(**KINDS[kind])
    params = map_specs(lambda leaf: np.ones(leaf.shape, np.float32), spec_of(small.config, head, vocab_size=60, num_outputs=2))
    small._replace(params=params).save(tmp_path / "in", head=head, head_config=head_config)
    done = invoke("import", tmp_path / "in", "--to", tmp_path / "out")
    assert f"Try: tpulm {hint.replace('OUT', str(tmp_path / 'out'))}" in done.stderr
    assert ("an encoder without a head" in done.stderr) == (head == "embedding" and head_config is None)
