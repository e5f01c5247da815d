"""`tpulm.Classifier`: it learns, says what it was taught, and is loaded again as it was saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import tpulm
from encoders import reviews
from tpulm import accelerators
from tpulm.convert.importing import import_model
from tpulm.errors import ConfigError, DataError
from tpulm.nn.params import named_leaves
from tpulm.train import tuning

QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-3, "max_length": 16, "dropout": 0.0}


@pytest.fixture(scope="module")
def fitted(encoder: Path) -> tpulm.Classifier:
    return tpulm.Classifier(encoder, labels=("neg", "pos"), **QUICK).fit(reviews(320), reviews(64, seed=1))


def test_it_learns(fitted: tpulm.Classifier) -> None:
    assert fitted.evaluate(reviews(64, seed=2))["accuracy"] > 0.95
    assert fitted.predict(["the film was very good and the plot was", "bad plot and cast and the film was very"]) == [
        "pos",
        "neg",
    ]
    shares = fitted.predict_proba(["the film was very good and the plot was"])
    assert fitted.predict([]) == [] and fitted.predict_proba([]).shape == (0, 2)
    assert shares.shape == (1, 2) and shares.sum() == pytest.approx(1.0) and shares[0, 1] > 0.7


@pytest.mark.slow
def test_every_kind_of_encoder_learns(make_encoder: Callable[[str], Path]) -> None:
    for kind in ("electra", "next_sentence", "megatron", "eurobert", "modernbert"):
        classifier = tpulm.Classifier(make_encoder(kind), **QUICK, layer_decay=1.0).fit(reviews(320), reviews(64, seed=1))
        assert classifier.evaluate(reviews(64, seed=2))["accuracy"] > 0.9, kind


@pytest.mark.slow
def test_the_same_seed_gives_the_same_parameters(encoder: Path) -> None:
    first, again, other = (
        tpulm.Classifier(encoder, **{**QUICK, "epochs": 1, "dropout": 0.1}, seed=seed).fit(reviews(64), reviews(32, seed=1))
        for seed in (0, 0, 1)
    )
    assert same(first.params, again.params)
    assert not same(first.params, other.params)


def test_a_saved_classifier_is_the_same_again(fitted: tpulm.Classifier, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path / "out")
    again = tpulm.Classifier(tmp_path / "out")
    texts = [text for text, _ in reviews(40, seed=3)]
    assert again.labels is not None and again.labels.names == ("neg", "pos")
    np.testing.assert_array_equal(again.predict_proba(texts), fitted.predict_proba(texts))


@pytest.mark.slow
def test_texts_are_cut_as_they_were_in_training(make_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    """By whoever loads the classifier again, transformers too; else its scores would be others than those reported."""
    from transformers import AutoTokenizer

    long = [(f"{text} {text}", label) for text, label in reviews(64)]
    for kind in ("bert", "eurobert"):
        settings = {**QUICK, "epochs": 1, "max_length": 8}
        fitted = tpulm.Classifier(make_encoder(kind), **settings).fit(long, long[:16])
        fitted.save_pretrained(tmp_path / kind)
        assert AutoTokenizer.from_pretrained(tmp_path / kind).model_max_length == 8
        again = tpulm.Classifier(tmp_path / kind)
        assert again.config.max_length == 8 and again.evaluate(long) == fitted.evaluate(long)
        classified = tpulm.classify(tpulm.load_model(tmp_path / kind), [text for text, _ in long])
        found = [list((one.probabilities or {}).values()) for one in classified]
        np.testing.assert_allclose(found, fitted.predict_proba([text for text, _ in long]), atol=1e-6)
        import_model(tmp_path / kind, tmp_path / f"{kind}-imported")
        assert tpulm.load_model(tmp_path / f"{kind}-imported").max_length == 8
        assert tpulm.Classifier(tmp_path / kind, max_length=16).config.max_length == 16


@pytest.mark.parametrize("said", [None, int(1e30), 1e30, 64, 4, "long"])
def test_a_length_that_says_nothing_is_not_used(fitted: tpulm.Classifier, encoder: Path, tmp_path: Path, said: Any) -> None:
    fitted.save_pretrained(tmp_path / "out")
    path = tmp_path / "out" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": said}))
    assert tpulm.load_model(tmp_path / "out").max_length is None
    assert tpulm.Classifier(tmp_path / "out").config.max_length == 32
    assert tpulm.load_model(encoder).max_length is None  # what a pretrained model reads is no classifier's length


def test_logits_are_those_of_transformers(torch: ModuleType, make_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    texts = [text for text, _ in reviews(20, seed=3)]
    for kind in ("bert", "electra", "megatron", "eurobert", "modernbert"):
        classifier = tpulm.Classifier(make_encoder(kind), **{**QUICK, "epochs": 1}).fit(reviews(64), reviews(16, seed=1))
        classifier.save_pretrained(tmp_path / kind)
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / kind).eval()
        inputs = AutoTokenizer.from_pretrained(tmp_path / kind)(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits.numpy()
        ours = classifier.outputs(classifier.encode([(text, "neg") for text in texts]))
        np.testing.assert_allclose(ours, logits, atol=2e-5, err_msg=kind)
        assert model.config.id2label == {0: "neg", 1: "pos"}
        assert model.config.label2id == {"neg": 0, "pos": 1}


def test_labels_keep_their_type_and_order(encoder: Path) -> None:
    numbered = [(text, 10 if label == "pos" else 2) for text, label in reviews(320)]
    classifier = tpulm.Classifier(encoder, **QUICK).fit(numbered)
    assert classifier.labels is not None and classifier.labels.names == ("2", "10")
    assert classifier.predict(["very good", "very bad"]) == [10, 2]


@pytest.mark.slow
def test_pairs(encoder: Path) -> None:
    """Whether both texts praise: only reading both tells."""
    one, two = reviews(512), reviews(512, seed=5)[::-1] + reviews(0)
    random = np.random.default_rng(0).permutation(512)
    pairs = [(one[i][0], two[random[i]][0], str(one[i][1] == two[random[i]][1])) for i in range(512)]
    classifier = tpulm.Classifier(encoder, **{**QUICK, "epochs": 12, "max_length": 24, "patience": "none"})
    classifier.fit(pairs[:448], pairs[448:])
    assert classifier.evaluate(pairs[448:])["accuracy"] > 0.8
    texts, others = [text for text, _, _ in pairs[:4]], [other for _, other, _ in pairs[:4]]
    said = classifier.predict(texts, others)
    assert len(said) == 4
    assert said == classifier.predict(list(zip(texts, others, strict=True)))
    assert said == classifier.predict({"text": texts, "pair": others})


@pytest.mark.slow
def test_regression(encoder: Path, tmp_path: Path) -> None:
    def with_counts(seed: int, count: int) -> list[tuple[str, float]]:
        return [(text, text.split().count("very") * 0.5 - 1.0) for text, _ in reviews(count, seed=seed)]

    classifier = tpulm.Classifier(encoder, task="regression", **{**QUICK, "epochs": 8}).fit(with_counts(0, 400))
    scores = classifier.evaluate(with_counts(1, 100))
    assert scores["pearson"] > 0.8 and scores["mean_squared_error"] < 0.2
    (value,) = classifier.predict(["very very good"])
    assert isinstance(value, float)
    classifier.save_pretrained(tmp_path / "out")
    again = tpulm.Classifier(tmp_path / "out", max_length=16)
    assert again.config.task == "regression" and again.predict(["very very good"]) == [pytest.approx(value, abs=1e-6)]


def test_a_regression_begins_on_the_scale_of_its_labels(encoder: Path, tmp_path: Path) -> None:
    """In 69 steps of at most 3e-3 no bias gets from 0 to 1,000."""
    counted = [(text, 1000.0 + 50.0 * text.split().count("very")) for text, _ in reviews(400)]
    classifier = tpulm.Classifier(encoder, task="regression", **QUICK)
    data = classifier.encode(counted, learn=True)
    head, plain = (
        classifier.first_params(0, training).classification_head.output  # pyright: ignore[reportAttributeAccessIssue]
        for training in (data, None)
    )
    np.testing.assert_allclose(head.kernel, plain.kernel * data.labels.std(), rtol=1e-6)
    assert head.bias == pytest.approx(data.labels.mean()) and plain.bias == 0
    assert classifier.fit(counted).evaluate(counted)["mean_squared_error"] < data.labels.var()
    classifier.save_pretrained(tmp_path / "out")
    again = tpulm.Classifier(tmp_path / "out", task="regression", **QUICK)
    assert same(again.first_params(0, data), classifier.params), "a head that was trained is taken as it is"


def test_a_head_can_be_trained_on(fitted: tpulm.Classifier, tmp_path: Path) -> None:
    """With the same labels from where it is; with others from a new last layer."""
    fitted.save_pretrained(tmp_path / "out")
    same_labels = tpulm.Classifier(tmp_path / "out", **QUICK)
    assert same(same_labels.first_params(0), fitted.params)
    others = tpulm.Classifier(tmp_path / "out", labels=("a", "b", "c"), **QUICK)
    first: Any = others.first_params(0)
    head = first.classification_head
    np.testing.assert_array_equal(head.dense.kernel, fitted.params.classification_head.dense.kernel)
    assert head.output.kernel.shape == (32, 3)


def test_next_sentences_pooler_is_taken_over(make_encoder: Callable[[str], Path]) -> None:
    folder = make_encoder("next_sentence")
    classifier = tpulm.Classifier(folder, labels=("a", "b"))
    params: Any = tpulm.load_model(folder).params
    first: Any = classifier.first_params(0)
    np.testing.assert_array_equal(first.classification_head.dense.kernel, params.next_sentence.pooler.kernel)


def test_from_scratch_nothing_is_taken(encoder: Path) -> None:
    pretrained = tpulm.Classifier(encoder, labels=("a", "b")).first_params(0)
    random = tpulm.Classifier(encoder, labels=("a", "b"), from_scratch=True).first_params(0)
    assert not np.array_equal(pretrained.embeddings.tokens, random.embeddings.tokens)


@pytest.mark.slow
def test_a_loop_of_ones_own_is_what_fit_does(encoder: Path) -> None:
    train, dev = reviews(96), reviews(32, seed=1)
    settings = {**QUICK, "dropout": 0.1, "patience": "none"}
    fitted = tpulm.Classifier(encoder, labels=("neg", "pos"), **settings).fit(train, dev)
    own = tpulm.Classifier(encoder, labels=("neg", "pos"), **settings)
    best, losses = -1.0, []
    for step, state, metrics in tpulm.training_steps(own, train):
        losses.append(metrics["loss"])
        if step % 6 == 0:
            accuracy = own.evaluate(dev, params=state.params)["accuracy"]
            if accuracy > best:
                best, own.params = accuracy, jax.device_get(state.params)
    assert len(losses) == 18 and losses[-1] < losses[0]
    assert same(own.params, fitted.params)


def test_it_stops_early(encoder: Path) -> None:
    settings = {**QUICK, "epochs": 30, "patience": 2}
    fitted = tpulm.Classifier(encoder, **settings).fit(reviews(64), reviews(32, seed=1)).fitted
    assert fitted is not None and fitted.ended_early
    assert len(fitted.history) == fitted.best_epoch + 2 < 30
    accuracies = [epoch["accuracy"] for epoch in fitted.history]
    assert fitted.best_epoch == 1 + accuracies.index(max(accuracies))


def test_every_epoch_sees_every_row(encoder: Path) -> None:
    """Also those of a last batch that is not full."""
    classifier = tpulm.Classifier(encoder, labels=("neg", "pos"), **{**QUICK, "log_every_steps": 1, "epochs": 1})
    rows = 0
    data = classifier.encode(reviews(41))
    tuned = classifier.tuning_of(data)
    for (_, batch), (_, state, _) in zip(
        tuned.batches(data).iterate(0), tpulm.training_steps(classifier, reviews(41)), strict=False
    ):
        assert float(state.window["rows"]) == batch["weights"].sum()
        rows += int(batch["weights"].sum())
    assert rows == 41 and tuned.settings.steps == 3


@pytest.mark.slow
def test_a_training_computes_to_its_end_as_it_began(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever processor it goes on; scores are in float32, as `predict` computes them."""

    def here(has_bfloat16: bool) -> None:
        monkeypatch.setattr(accelerators, "cpu_multiplies_bfloat16", lambda: has_bfloat16)

    here(True)
    classifier = tpulm.Classifier(encoder, **{**QUICK, "checkpoint": {"keep": 3}})
    classifier.fit(reviews(320), reviews(64, seed=1), folder=tmp_path)
    scored = classifier.evaluate(reviews(64, seed=2))
    assert scored["accuracy"] > 0.95
    classifier.save_pretrained(tmp_path / "saved")
    assert tpulm.Classifier(tmp_path / "saved").evaluate(reviews(64, seed=2)) == scored

    data = classifier.encode(reviews(320))
    here(False)
    assert classifier.tuning_of(data, tmp_path).config.compute_dtype == "bfloat16"
    assert classifier.tuning_of(data).config.compute_dtype == "float32"
    here(True)
    assert classifier.tuning_of(data, tmp_path / "new").config.compute_dtype == "bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize(("hardware", "rows"), [({"data": 2}, 42), ({"microbatch_size": 4}, 48)])
def test_a_batch_is_no_larger_than_all_rows(
    encoder: Path, monkeypatch: pytest.MonkeyPatch, hardware: dict[str, Any], rows: int
) -> None:
    """The rest of it would weigh nothing and take memory; what is learned is the same without."""
    settings = {**QUICK, "epochs": 2, "dropout": 0.1, "batch_size": 256, "hardware": hardware}
    small = tpulm.Classifier(encoder, **settings).fit(reviews(41), reviews(16, seed=1))
    assert small.tuning_of(small.encode(reviews(41))).layout.batch_size == rows
    monkeypatch.setattr(tuning, "_batch_size", lambda config, *_: config.batch_size)
    whole = tpulm.Classifier(encoder, **settings).fit(reviews(41), reviews(16, seed=1))
    for name, leaf in named_leaves(whole.params).items():
        np.testing.assert_allclose(named_leaves(small.params)[name], leaf, atol=1e-5, err_msg=name)


def same(first: Any, second: Any) -> bool:
    a, b = named_leaves(first), named_leaves(second)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_saving_replaces_a_classifier_and_nothing_else(fitted: tpulm.Classifier, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "model.safetensors").write_bytes(b"of an upload that was killed")
    fitted.save_pretrained(tmp_path / "saved")
    fitted.save_pretrained(tmp_path / "saved")
    for name in ("notes/kept.txt", "app.py", ".gitignore"):
        kept = tmp_path / "saved" / name
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("mine")
        with pytest.raises(ConfigError, match=rf"no part of a saved classifier \({name.split('/')[0]}\)"):
            fitted.save_pretrained(tmp_path / "saved")
        assert kept.read_text() == "mine"
        shutil.rmtree(kept.parent) if "/" in name else kept.unlink()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json"):
        fitted.save_pretrained(tmp_path / "project")
    assert (tmp_path / "project" / "config.json").read_text() == "{}"


# -- refusals ---------------------------------------------------------------------------------------------------------------


def test_a_label_that_was_not_trained(fitted: tpulm.Classifier) -> None:
    with pytest.raises(DataError, match=r"example 1: .*'nag' is none of the classes: 'neg', 'pos'\. Did you mean 'neg'\?"):
        fitted.evaluate([("a good film", "pos"), ("a bad film", "nag")])


def test_one_number_only(encoder: Path) -> None:
    only = [(text, 3) for text, _ in reviews(40)]
    with pytest.raises(DataError, match="all 40 examples"):
        tpulm.Classifier(encoder, task="regression", **QUICK).fit(only, only)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("good", r'the texts are one string, "good"; give a list of texts: \["good"\]'),
        (["good", " "], "example 1: the text is empty"),
        (["good", None], "example 1: the text is empty"),
        ([5], "example 0: the text is 5, not a string"),
        ([("good", "film"), ("good",)], "example 1: it has 1 parts and example 0 has 2"),
        ([("good", "")], "the second text is empty"),
        ({"texts": ["good"]}, "no column 'text'. Did you mean 'texts'"),
    ],
)
def test_what_is_no_list_of_texts(fitted: tpulm.Classifier, texts: Any, message: str) -> None:
    for predict in (fitted.predict, fitted.predict_proba):
        with pytest.raises(DataError, match=message):
            predict(texts)
    with pytest.raises(DataError, match="not of one length: text 2, pair 1"):
        fitted.predict(["good", "bad"], ["film"])


@pytest.mark.parametrize("labels", [{"neg", "pos"}, "np", b"np", {"neg": 0, "pos": 1}, 2])
def test_labels_without_an_order(encoder: Path, labels: Any) -> None:
    with pytest.raises(ConfigError, match=rf"the labels are a {type(labels).__name__}; give a list or tuple"):
        tpulm.Classifier(encoder, labels=labels)


@pytest.mark.parametrize("labels", [None, ("neg", "pos")])
def test_one_class_only(encoder: Path, labels: tuple[str, str] | None) -> None:
    only = [(text, "pos") for text, _ in reviews(40)]
    with pytest.raises(DataError, match="'pos'"):
        tpulm.Classifier(encoder, labels=labels, **QUICK).fit(only, only)


def test_a_causal_model(make_encoder: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"causal language model.*needs an encoder"):
        tpulm.Classifier(make_encoder("decoder"), **QUICK).fit(reviews(64))


def test_settings(encoder: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'epoch'\. Did you mean 'epochs'\?"):
        tpulm.Classifier(encoder, epoch=3)
    with pytest.raises(ConfigError, match="max_length 64"):
        tpulm.Classifier(encoder, max_length=64)
    with pytest.raises(ConfigError, match="'pearson'"):
        tpulm.Classifier(encoder, metric="pearson")
    with pytest.raises(ConfigError, match="has no labels"):
        tpulm.Classifier(encoder, labels=("a", "b"), task="regression")
    with pytest.raises(ConfigError, match="batch_size 13"):
        tpulm.Classifier(encoder, batch_size=13, max_length=16).fit(reviews(64))


def test_before_it_is_trained(encoder: Path) -> None:
    with pytest.raises(ConfigError, match="has not been trained"):
        tpulm.Classifier(encoder, labels=("a", "b"), max_length=16).predict(["good"])
    with pytest.raises(ConfigError, match="labels are not known yet"):
        tpulm.Classifier(encoder, max_length=16).predict(["good"])
