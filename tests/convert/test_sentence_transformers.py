"""Folders of sentence-transformers give its vectors, before and after an import; what is not supported is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpulm
from command_line import invoke
from encoders import build_encoder
from tpulm.convert.huggingface import load_model
from tpulm.convert.importing import import_model
from tpulm.errors import ConfigError, DataError
from tpulm.predict.embed import Embedder
from tpulm.predict.fill_mask import fill_mask

pytestmark = pytest.mark.needs_peer
TEXTS = ["the film was good", "bad plot .", "the film was very bad and the plot was very good " * 2, "The Cast"]


@pytest.fixture
def library(torch: Any) -> Any:
    return pytest.importorskip("sentence_transformers")


def made(library: Any, folder: Path, pooling: Any, *, normalized: bool = True, **settings: Any) -> Path:
    """What the installed version saves, over the encoder of one of our exports."""
    modules: Any = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    encoder = modules.Transformer(str(build_encoder("bert", folder)), max_seq_length=12)
    parts = [encoder, modules.Pooling(32, pooling), *([modules.Normalize()] if normalized else [])]
    library.SentenceTransformer(modules=parts, device="cpu", **settings).save(str(folder / "st"))
    return folder / "st"


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **values}))


def as_of_version_2(folder: Path, kind: str) -> None:
    """The older layout: the length is not the tokenizer's, pooling modes are flags, and files and classes have other names."""
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    names = ("cls_token", "mean_tokens", "max_tokens")
    modes = {f"pooling_mode_{name}": name.startswith(pooling["pooling_mode"]) for name in names}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    (folder / "sentence_bert_config.json").unlink()
    (folder / f"sentence_{kind}_config.json").write_text('{"max_seq_length": 12, "do_lower_case": false}')
    change(folder / "tokenizer_config.json", model_max_length=32)
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(modules))


PROMPTS = {"prompts": {"query": "the film ", "passage": "the cast "}, "default_prompt_name": "query"}


@pytest.mark.parametrize(
    ("pooling", "settings", "older"),
    [
        ("cls", PROMPTS, None),
        ("mean", {}, "xlm-roberta"),
        *(("mean", {"normalized": False, "similarity_fn_name": "dot", **PROMPTS}, older) for older in (None, "bert")),
    ],
)
def test_vectors_are_the_library_s(library: Any, tmp_path: Path, pooling: str, settings: dict[str, Any], older: Any) -> None:
    folder = made(library, tmp_path, pooling, **settings)
    if older is not None:
        as_of_version_2(folder, older)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    expected = theirs.encode(TEXTS)
    assert theirs.max_seq_length == 12
    assert np.abs(np.linalg.norm(expected, axis=1) - 1).max() < 1e-5 or not settings.get("normalized", True)
    np.testing.assert_allclose(tpulm.embed(folder, TEXTS), expected, atol=1e-5)
    imported = import_model(folder, tmp_path / "imported")
    assert imported.head == "embedding"
    assert all("upper-case" in note for note in imported.notes), "the toy vocabulary has none"
    np.testing.assert_allclose(tpulm.embed(tmp_path / "imported", TEXTS), expected, atol=1e-5)
    again = library.SentenceTransformer(str(tmp_path / "imported"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), expected, atol=1e-5)
    assert again.similarity_fn_name == theirs.similarity_fn_name
    assert {name: text for name, text in again.prompts.items() if text} == settings.get("prompts", {})


def test_prompts_that_are_not_put_before_texts_are_said(library: Any, tmp_path: Path) -> None:
    folder = made(library, tmp_path, "mean", prompts=PROMPTS["prompts"])
    assert Embedder(load_model(folder)).prompts == PROMPTS["prompts"]
    done = invoke("embed", str(folder), *TEXTS[:2])
    assert "prompts that are yours to put before texts: passage 'the cast ', query 'the film '" in done.stderr


def test_a_fine_tuned_one_embeds_as_before(library: Any, tmp_path: Path) -> None:
    """With the default prompt before every text, in training, too, and without a Normalize that it had not."""
    folder = made(library, tmp_path, "mean", normalized=False, similarity_fn_name="dot", **PROMPTS)
    classifier = tpulm.Classifier(folder)
    assert classifier.config.task == "embed"
    classifier.params = classifier.first_params(0)
    classifier.save_pretrained(tmp_path / "out")
    theirs, again = (library.SentenceTransformer(str(one), device="cpu") for one in (folder, tmp_path / "out"))
    np.testing.assert_allclose(again.encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    for name in ("default_prompt_name", "similarity_fn_name", "max_seq_length"):
        assert getattr(again, name) == getattr(theirs, name)
    assert {name: text for name, text in again.prompts.items() if text} == PROMPTS["prompts"]
    expected = library.util.pairwise_cos_sim(theirs.encode(TEXTS[:2]), theirs.encode(TEXTS[2:]))
    np.testing.assert_allclose(classifier.predict(list(zip(TEXTS[:2], TEXTS[2:], strict=True))), expected, atol=1e-5)


def test_such_a_model_is_fine_tuned_for_classes_too(library: Any, tmp_path: Path) -> None:
    folder = made(library, tmp_path, "cls")
    classifier = tpulm.Classifier(folder, labels=("a", "b"), task="classification", max_length=16)
    classifier.params = classifier.first_params(0)
    classifier.save_pretrained(tmp_path / "out")
    assert (tpulm.load_model(tmp_path / "out").head, (tmp_path / "out" / "modules.json").exists()) == ("classification", False)
    with pytest.raises(ConfigError, match="masked head"):
        fill_mask(load_model(folder), "the [MASK]")


def test_what_is_not_supported_is_refused_by_name(library: Any, tmp_path: Path) -> None:
    folder = made(library, tmp_path, "mean", prompts=PROMPTS["prompts"])
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    cases: list[tuple[str, Any, str]] = [
        ("1_Pooling/config.json", {"pooling_mode": "max"}, r"1_Pooling.config.json: .*\['max'\]"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt is false"),
        ("sentence_bert_config.json", {"max_seq_length": "12"}, "max_seq_length is '12'"),
        ("sentence_bert_config.json", {"max_seq_length": 4}, "max_seq_length is 4"),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim is 8"),
        ("modules.json", [*modules[:2], dense, modules[2]], "module 3 is Dense"),
        ("modules.json", {}, "not a JSON array"),
    ]
    for name, values, message in cases:
        file = folder / name
        whole = file.read_text()
        file.write_text(json.dumps(values if name == "modules.json" else {**json.loads(whole), **values}))
        with pytest.raises(DataError, match=message):
            load_model(folder)
        file.write_text(whole)
    (folder / "modules.json").unlink()
    assert load_model(folder).head_config is None  # as the messages advise


def test_lower_case_beside_the_tokenizer(library: Any, tmp_path: Path) -> None:
    """`do_lower_case` changes nothing where the tokenizer lower-cases, and is refused where it does not."""
    folder = made(library, tmp_path, "mean")
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["a"] = tokenizer["model"]["vocab"].pop("cast")
    for lowercase in (True, False):
        tokenizer["normalizer"]["lowercase"] = lowercase
        change(folder / "tokenizer.json", **tokenizer)
        if lowercase:
            assert load_model(folder).head == "embedding"
    with pytest.raises(DataError, match="do_lower_case"):
        load_model(folder)
