"""`tpulm import`: folders of Hugging Face's and a checkpoint of TF1 become models that the other commands use."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from command_line import invoke
from tpulm import storage, tokenization
from tpulm.cli.app import app
from tpulm.config import ModelConfig, TokenizerConfig
from tpulm.convert.config_json import HeadConfig
from tpulm.convert.heads import Head, spec_of
from tpulm.convert.huggingface import load_model, load_weights, save_model, save_parts
from tpulm.errors import ConfigError, DataError, StorageError
from tpulm.models import electra
from tpulm.nn.params import ParamSpec, map_specs, named_leaves, ones

SIZES = {"num_layers": 2, "hidden_size": 24, "num_heads": 3, "intermediate_size": 40, "max_positions": 20}
LLAMA = {"norm": "rms", "biases": False, "feed_forward": "gated", "positions": "rotary", "activation": "silu", "dropout": 0.0}
KINDS: dict[str, tuple[Head, dict[str, Any]]] = {
    "bert": ("next_sentence", {}),
    "megatron-bert": ("masked", {"norm_position": "pre"}),
    "gpt2": ("causal", {"architecture": "decoder", "norm_position": "pre"}),
    "llama": ("causal", {"architecture": "decoder", "norm_position": "pre", "tied_output": False, **LLAMA}),
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> dict[str, Any]:
    """What `save_model` takes of one, by name."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "cat", *(f"w{number}" for number in range(52))]
    storage.write_atomic(tmp_path / "vocab.txt", "\n".join(words) + "\n")
    tokenization.save(tokenization.load(tmp_path / "vocab.txt", TokenizerConfig(lowercase=True)), tmp_path / "tokenizer")
    return {"vocab_size": 60, "tokenization_folder": tmp_path / "tokenizer", "pad_token_id": 0}


def draw(leaf: ParamSpec) -> np.ndarray:
    return np.random.default_rng(7).normal(float(leaf.init is ones), 0.3, leaf.shape).astype(np.float32)


def made(folder: Path, kind: str, tokenizer: dict[str, Any]) -> Path:
    """A random model as a folder of Hugging Face's."""
    head, settings = KINDS[kind]
    config = ModelConfig.model_validate(SIZES | settings)
    return save_model(folder, map_specs(draw, spec_of(config, head, vocab_size=60)), config, **tokenizer)


def run(*arguments: object) -> dict[str, Any]:
    """What `tpulm import … --json` prints; its errors are raised."""
    result = CliRunner().invoke(app, ["import", *map(str, arguments), "--json"], catch_exceptions=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_export_comes_back_as_it_was(tmp_path: Path, tokenizer: dict[str, Any], kind: str):
    source = made(tmp_path / "source", kind, tokenizer)
    imported = run(source, "--to", tmp_path / "out")
    assert (imported["source"], imported["notes"], imported["moments"]) == ("huggingface", [], False)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    before, after = load_model(source), load_model(tmp_path / "out")
    assert (before.config, before.vocab_size, before.head) == (after.config, after.vocab_size, after.head)
    assert before.tokenization.canonical_json == after.tokenization.canonical_json
    for name, leaf in named_leaves(before.params).items():
        np.testing.assert_array_equal(named_leaves(after.params)[name], leaf, err_msg=name)
    files = {file.name for file in source.iterdir()}
    assert {file.name for file in (tmp_path / "out").iterdir()} == files | {"import.json"}
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads((source / "config.json").read_text())


def test_both_halves_of_an_electra_or_one(tmp_path: Path, tokenizer: dict[str, Any]):
    config = ModelConfig.model_validate({"architecture": "electra", "activation": "gelu", "embedding_size": 12, **SIZES})
    save_parts(tmp_path / "source", map_specs(draw, electra.spec(config, vocab_size=60)), config, **tokenizer)
    assert run(tmp_path / "source", "--to", tmp_path / "both")["parts"] == ["discriminator", "generator"]
    assert run(tmp_path / "source" / "discriminator", "--to", tmp_path / "one")["parts"] == [""]
    for half, copy in (("discriminator", "both/discriminator"), ("generator", "both/generator"), ("discriminator", "one")):
        weights = (tmp_path / "source" / half / "model.safetensors").read_bytes()
        assert (tmp_path / copy / "model.safetensors").read_bytes() == weights


def test_somebody_else_s_gpt2_comes_back_as_it_was(torch: Any, real_data: Path, tmp_path: Path):
    """Judge: transformers, which loads both."""
    import transformers

    source, out = real_data / "fixtures" / "gpt2_hf", tmp_path / "out"
    imported = run(source, "--to", out)
    assert (imported["architecture"], imported["vocab_size"], imported["notes"]) == ("decoder", 21, [])
    before, after = load_weights(source), load_weights(out)
    assert before.config == after.config
    for name, leaf in named_leaves(before.params).items():
        np.testing.assert_array_equal(named_leaves(after.params)[name], leaf, err_msg=name)
    run(out, "--to", tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    transformers.utils.logging.set_verbosity_error()
    models = [transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in (source, out)]
    with torch.no_grad():
        logits = [model.eval()(torch.arange(20)[None]).logits.numpy() for model in models]
    np.testing.assert_array_equal(logits[0], logits[1])
    tokens = [transformers.AutoTokenizer.from_pretrained(folder)("low newer")["input_ids"] for folder in (source, out)]
    assert tokens[0] == tokens[1]


def test_a_checkpoint_of_tf1(real_data: Path, tmp_path: Path):
    source, out = real_data / "fixtures" / "bert_tf1_checkpoint", tmp_path / "out"
    imported = invoke("import", source / "bert_model.ckpt", "--to", out, "--json")
    assert json.loads(imported.stdout)["step"] == 20 and "moments in optimizer.safetensors" in imported.stderr
    filled = invoke("fill-mask", out, "all work and no [MASK]", "--top", 2, "--json")
    assert len(json.loads(filled.stdout)["all work and no [MASK]"]) == 2
    with pytest.raises(ConfigError, match=r"Did you mean 'bert_model\.ckpt'\?"):
        run(source / "bert_modl.ckpt", "--to", tmp_path / "other")


# -- what is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "tf_model.h5", "flax_model.msgpack", "model.pt"]
)
def test_pickled_weights_are_never_opened(tmp_path: Path, name: str):
    storage.make_folder(tmp_path / "source")
    (tmp_path / "source" / name).write_bytes(b"\x80\x04cos\nsystem\n")
    for source in (tmp_path / "source", tmp_path / "source" / name):
        with pytest.raises(ConfigError, match=name):
            run(source, "--to", tmp_path / "out")


def test_what_is_no_model_is_refused_with_what_to_do(tmp_path: Path, tokenizer: dict[str, Any]):
    with pytest.raises(ConfigError, match="nowhere"):
        run(tmp_path / "nowhere", "--to", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"vocab\.txt"):
        run(tmp_path / "tokenizer", "--to", tmp_path / "out")
    source = made(tmp_path / "source", "bert", tokenizer)
    with pytest.raises(ConfigError, match="--vocab, --strip-accents/--keep-accents, --kind"):
        run(source, "--to", tmp_path / "out", "--vocab", tmp_path / "vocab.txt", "--kind", "bert", "--keep-accents")
    with pytest.raises(ConfigError, match=r"model\.safetensors is a file"):
        run(source / "model.safetensors", "--to", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"vocab\.txt is a file"):
        run(source, "--to", tmp_path / "vocab.txt")
    with pytest.raises(ConfigError, match="not empty"):
        run(source, "--to", source)
    (source / "model.safetensors").rename(source / "model-00001-of-00002.safetensors")
    (source / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(DataError, match="weight_map is None"):
        run(source, "--to", tmp_path / "out")
    (source / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-00002-of-00002.safetensors"}}')
    with pytest.raises(StorageError, match="model-00002-of-00002"):
        run(source, "--to", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def change_config(folder: Path, **values: Any) -> None:
    storage.write_json(folder / "config.json", storage.read_json(folder / "config.json") | values)


def test_files_that_contradict_each_other_are_refused(tmp_path: Path, tokenizer: dict[str, Any]):
    source = made(tmp_path / "source", "bert", tokenizer)
    weights = source / "model.safetensors"
    whole, values = weights.read_bytes(), storage.read_json(source / "config.json")

    def refused(message: str) -> None:
        with pytest.raises(DataError, match=message):
            run(source, "--to", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    for broken in (whole[:100], struct.pack("<Q", 1 << 40) + whole[8:], whole[:8] + b"}" + whole[9:], whole[:-10], b""):
        weights.write_bytes(broken)
        refused("not a whole safetensors file")
    weights.write_bytes(whole)
    change_config(source, model_type="roberta")
    refused("model_type 'roberta' is not supported")
    change_config(source, **values | {"model_type": "electra", "embedding_size": 24})
    refused("missing: electra.embeddings.word_embeddings.weight")
    change_config(source, **values | {"vocab_size": 50})
    refused(r"word_embeddings.weight is \[60, 24\], config.json says \[50, 24\]")
    change_config(source, **values)
    tensors = safetensors.numpy.load(whole)
    tensors["bert.embeddings.extra"] = tensors.pop("bert.embeddings.LayerNorm.bias")
    weights.write_bytes(safetensors.numpy.save(tensors))
    refused(r"(?s)missing: bert.embeddings.LayerNorm.bias \[24\].*unknown: bert.embeddings.extra \[24\]")
    weights.write_bytes(whole)
    words = [f"x{number}" for number in range(100)]
    (source / "tokenizer.json").unlink()
    storage.write_atomic(source / "vocab.txt", "\n".join([*(source / "vocab.txt").read_text().split(), *words]) + "\n")
    refused("the vocabulary has 160 tokens, but the model only 60 .*belongs to another model")


def test_a_vocabulary_of_another_gpt2_is_refused(tmp_path: Path, tokenizer: dict[str, Any]):
    source = made(tmp_path / "source", "gpt2", tokenizer)
    (source / "tokenizer.json").unlink()
    (source / "vocab.txt").unlink()
    (source / "vocab.json").write_text(json.dumps({f"w{number}": number for number in range(61)}))
    (source / "merges.txt").write_text("")
    (source / "tokenizer_config.json").unlink()
    with pytest.raises(DataError, match="the vocabulary has 61 tokens, but the model only 60"):
        run(source, "--to", tmp_path / "out")


def test_a_tokenizer_that_only_transformers_reads(tmp_path: Path, tokenizer: dict[str, Any]):
    source = made(tmp_path / "source", "llama", tokenizer)
    for name in ("tokenizer.json", "vocab.txt"):
        (source / name).unlink()
    (source / "tokenizer.model").write_bytes(b"SentencePiece")
    imported = run(source, "--to", tmp_path / "out")
    assert "transformers reads it, tpulm's own commands do not" in imported["notes"][0]
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == b"SentencePiece"
    with pytest.raises(ConfigError, match=r"tokenizer\.model"):
        load_model(tmp_path / "out")


def test_from_and_to_cloud_storage(gcs: object, tmp_path: Path, tokenizer: dict[str, Any]):
    source = made(tmp_path / "source", "bert", tokenizer)
    run(source, "--to", "gs://runs/model")
    run("gs://runs/model", "--to", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="gs://runs/model is not empty"):
        run(source, "--to", "gs://runs/model")


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
def test_the_hint_fits_the_model(tmp_path: Path, tokenizer: dict[str, Any], hint: str):
    kind, head, head_config = HINTS[hint]
    settings = {"architecture": "electra", "activation": "gelu"} if kind == "electra" else KINDS[kind][1]
    config = ModelConfig.model_validate(SIZES | settings)
    spec = spec_of(config, head, vocab_size=60, num_outputs=2)
    save_model(tmp_path / "in", map_specs(draw, spec), config, **tokenizer, head=head, head_config=head_config)
    done = invoke("import", str(tmp_path / "in"), "--to", str(tmp_path / "out"))
    assert f"Try: tpulm {hint.replace('OUT', str(tmp_path / 'out'))}" in done.stderr
    assert ("an encoder without a head" in done.stderr) == (head == "embedding" and head_config is None)
