"""`tpulm.Classifier`: labels and probabilities, where training begins, saving, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_examples import examples_of, same, untrained

import tpulm
from encoders import built, reviews
from tpulm import accelerators, storage
from tpulm.config import FinetuneConfig, ModelConfig
from tpulm.convert.importing import import_model
from tpulm.errors import ConfigError, DataError
from tpulm.nn.params import named_leaves
from tpulm.progress import Silent
from tpulm.train import finetuning_program

QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-3, "max_length": 16, "dropout": 0.0}


@pytest.fixture(scope="module")
def fitted() -> tpulm.Classifier:
    """With random parameters; what a trained one answers is in test_tasks.py."""
    return untrained("classification")[0]


def test_texts_are_cut_as_they_were_in_training(tmp_path: Path) -> None:
    """By whoever loads the classifier again, transformers too; else its scores would be others than those reported."""
    from transformers import AutoTokenizer

    long, (fitted, _) = [(f"{text} {text}", label) for text, label in reviews(32)], untrained("classification", max_length=8)
    fitted.save_pretrained(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 8
    again = tpulm.Classifier(tmp_path / "out")
    assert again.config.max_length == 8 and again.evaluate(long) == fitted.evaluate(long)
    classified = tpulm.classify(tpulm.load_model(tmp_path / "out"), [text for text, _ in long])
    found = [list((one.probabilities or {}).values()) for one in classified]
    np.testing.assert_allclose(found, fitted.predict_proba([text for text, _ in long]), atol=1e-6)
    import_model(tmp_path / "out", tmp_path / "imported")
    assert tpulm.load_model(tmp_path / "imported").max_length == 8
    assert tpulm.Classifier(tmp_path / "out", max_length=16).config.max_length == 16


def test_the_usual_learning_rate_is_that_of_a_model_of_this_width(encoder: Path, tmp_path: Path) -> None:
    published = tpulm.load_model(encoder)
    assert tpulm.Classifier(published).config.learning_rate == 5e-5
    classifier = tpulm.Classifier(published._replace(pretrained_here=True), labels=("neg", "pos"))
    assert classifier.config.learning_rate == 1e-3  # a narrow one's
    classifier.params = classifier.first_params(0)
    classifier.save_pretrained(tmp_path / "out")
    assert tpulm.load_model(tmp_path / "out").pretrained_here
    rates = ("electra", 256, 1e-3), ("decoder", 256, 3e-4), ("bert", 512, 5e-5), ("electra", 512, 1e-4), ("decoder", 512, 5e-5)
    for architecture, width, rate in rates:
        model = ModelConfig.model_validate({"architecture": architecture, "hidden_size": width, "num_heads": 4})
        assert FinetuneConfig().for_model(model, pretrained_here=True).learning_rate == rate


def test_a_length_that_says_nothing_is_not_used(fitted: tpulm.Classifier, encoder: Path, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path / "out")
    path = tmp_path / "out" / "tokenizer_config.json"
    for said in (None, int(1e30), 1e30, 64, 4, "long"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": said}))
        assert tpulm.load_model(tmp_path / "out").max_length is None
    assert tpulm.Classifier(tmp_path / "out").config.max_length == 32
    assert tpulm.load_model(encoder).max_length is None  # what a pretrained model reads is no classifier's length


def test_labels_keep_their_type_and_order(encoder: Path) -> None:
    classifier = tpulm.Classifier(encoder, **QUICK)
    classifier.encode([(text, 10 if label == "pos" else 2) for text, label in reviews(20)], learn=True)
    classifier.params = classifier.first_params(0)
    assert classifier.labels is not None and classifier.labels.names == ("2", "10")
    answers = classifier.predict(["very good", "very bad"])
    assert answers == [(2, 10)[index] for index in classifier.predict_proba(["very good", "very bad"]).argmax(axis=1)]


def test_pairs_are_given_in_three_ways(fitted: tpulm.Classifier) -> None:
    texts, others = ["the film was good", "the plot"], ["the cast was bad", "a very good film"]
    expected = fitted.predict_proba(list(zip(texts, others, strict=True)))
    np.testing.assert_array_equal(fitted.predict_proba(texts, others), expected)
    np.testing.assert_array_equal(fitted.predict_proba({"text": texts, "pair": others}), expected)
    assert not np.allclose(expected, fitted.predict_proba(texts))
    assert fitted.predict({"text": []}) == [] and fitted.predict([], []) == []
    assert fitted.predict([]) == [] and fitted.predict_proba([]).shape == (0, 2)
    np.testing.assert_allclose(expected.sum(axis=1), 1.0, rtol=1e-6)


def test_a_regression_begins_on_the_scale_of_its_labels(encoder: Path, tmp_path: Path) -> None:
    """In 69 steps of at most 3e-3 no bias gets from 0 to 1,000; what it learns is in test_tasks.py."""
    classifier = tpulm.Classifier(encoder, task="regression", **QUICK)
    data = classifier.encode(examples_of("regression", 400), learn=True)
    trees: tuple[Any, Any] = classifier.first_params(0, data), classifier.first_params(0)
    head, plain = (tree.classification_head.output for tree in trees)
    np.testing.assert_allclose(head.kernel, plain.kernel * data.labels.std(), rtol=1e-6)
    assert head.bias == pytest.approx(data.labels.mean()) and plain.bias == 0
    classifier.params = classifier.first_params(0, data)
    classifier.save_pretrained(tmp_path / "out")
    again = tpulm.Classifier(tmp_path / "out", task="regression", **QUICK)
    assert same(again.first_params(0, data), classifier.params), "a head that was trained is taken as it is"


def test_a_regression_learns_on_any_scale(encoder: Path) -> None:
    """Judged by scikit-learn's formula of R2; a power of two as the scale changes no bit of what is learned."""
    unseen, found = reviews(64, seed=2), list[np.ndarray]()
    gold = np.array([label == "pos" for _, label in unseen], np.float64)
    settings: dict[str, Any] = QUICK | {"learning_rate": 5e-3, "task": "regression"}
    for scale in (2.0**-20, 2.0**-60, 2.0**70):
        train, dev = ([(text, scale * (of == "pos")) for text, of in reviews(*some)] for some in ((320,), (64,)))
        classifier = tpulm.Classifier(encoder, **settings).fit(train, dev)
        found.append(np.array(classifier.predict([text for text, _ in unseen])) / scale)
        assert 1 - ((found[-1] - gold) ** 2).sum() / ((gold - gold.mean()) ** 2).sum() > 0.8
    np.testing.assert_array_equal(found[0], found[1])


def test_an_own_loop_sees_a_regression_in_the_labels_own_unit(encoder: Path) -> None:
    """The loss is the mean squared error of where it begins; the parameters at the end are those of `fit`."""
    examples = [(text, 1e-5 * (of == "pos")) for text, of in reviews(32)]
    settings: dict[str, Any] = QUICK | {"epochs": 1, "batch_size": 32, "task": "regression"}
    fitted = tpulm.Classifier(encoder, **settings)
    data = fitted.encode(examples, learn=True)
    fitted.params = fitted.first_params(0, data)
    errors = np.array(fitted.predict([text for text, _ in examples])) - [label for _, label in examples]
    [(_, state, metrics)] = tpulm.training_steps(fitted, examples)
    assert metrics["loss"] == pytest.approx(np.mean(errors**2), rel=1e-4)
    own = fitted.evaluate(examples, params=state.params)
    assert same(state.params, fitted.fit(examples, examples).params) and fitted.evaluate(examples) == own


def test_a_head_can_be_trained_on(fitted: tpulm.Classifier, tmp_path: Path) -> None:
    """With the same labels from where it is; with others from a new last layer."""
    fitted.save_pretrained(tmp_path / "out")
    same_labels = tpulm.Classifier(tmp_path / "out", **QUICK)
    assert same(same_labels.first_params(0), tpulm.load_model(tmp_path / "out").params)
    others = tpulm.Classifier(tmp_path / "out", labels=("a", "b", "c"), **QUICK)
    first: Any = others.first_params(0)
    head = first.classification_head
    own: Any = fitted.params.classification_head
    np.testing.assert_array_equal(head.dense.kernel, own.dense.kernel)
    assert head.output.kernel.shape == (32, 3)


def test_what_is_taken_of_the_pretrained_model() -> None:
    """The pooler of next-sentence prediction, too; from scratch nothing."""
    folder = built("next_sentence")
    params: Any = tpulm.load_model(folder).params
    first: Any = tpulm.Classifier(folder, labels=("a", "b")).first_params(0)
    np.testing.assert_array_equal(first.classification_head.dense.kernel, params.next_sentence.pooler.kernel)
    random = tpulm.Classifier(folder, labels=("a", "b"), from_scratch=True).first_params(0)
    assert not np.array_equal(first.embeddings.tokens, random.embeddings.tokens)


def test_nothing_is_compiled_in_the_time_of_the_steps(encoder: Path) -> None:
    """Neither for the lengths of the first epoch's batches, nor to score dev; the time left was off by minutes."""
    import jax

    compiled, stages, settings = Counter[str](), [""], {**QUICK, "epochs": 1, "max_length": 32}

    class Stages(Silent):
        def start(self, description: str, total: float | None = None, unit: str = "") -> None:
            stages.append(description)

    def add(event: str, duration_secs: float, **named: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled[f"{stages[-1]}: {named.get('fun_name')}"] += 1

    jax.monitoring.register_event_duration_secs_listener(add)
    try:
        texts = [(" ".join([text] * (1 + number % 3)), label) for number, (text, label) in enumerate(reviews(96))]
        tpulm.Classifier(encoder, **settings).fit(texts, progress=Stages())
    finally:
        jax.monitoring.unregister_event_duration_listener(add)
    assert compiled["Compiling: jit(step)"] > 1 and compiled["Compiling: jit(outputs)"] > 0, compiled
    assert not compiled["Fine-tuning: jit(step)"] + compiled["Fine-tuning: jit(outputs)"], compiled


def test_it_stops_early(encoder: Path) -> None:
    settings = {**QUICK, "epochs": 30, "patience": 2}
    fitted = tpulm.Classifier(encoder, **settings).fit(reviews(64), reviews(32, seed=1)).fitted
    assert fitted is not None and fitted.ended_early
    assert len(fitted.history) == fitted.best_epoch + 2 < 30
    accuracies = [epoch["accuracy"] for epoch in fitted.history]
    assert fitted.best_epoch == 1 + accuracies.index(max(accuracies))


def test_a_training_computes_to_its_end_as_it_began(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever processor it goes on."""
    classifier = tpulm.Classifier(encoder, **QUICK)
    data = classifier.encode(reviews(40), learn=True)
    storage.write_json(tmp_path / "begun" / "checkpoints" / "6" / "metadata" / "metadata", {"compute_dtype": "bfloat16"})
    for has_bfloat16, new in ((False, "float32"), (True, "bfloat16")):
        monkeypatch.setattr(accelerators, "cpu_multiplies_bfloat16", lambda has=has_bfloat16: has)
        assert classifier.tuning_of(data).config.compute_dtype == new
        assert classifier.tuning_of(data, tmp_path / "new").config.compute_dtype == new
        assert classifier.tuning_of(data, tmp_path / "begun").config.compute_dtype == "bfloat16"


@pytest.mark.slow
def test_a_batch_is_no_larger_than_all_rows(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of it would weigh nothing and take memory; what is learned is the same without."""
    settings = {**QUICK, "epochs": 2, "dropout": 0.1, "batch_size": 256}

    def layout(**hardware: int) -> Any:
        classifier = tpulm.Classifier(encoder, **settings, hardware=hardware)
        return classifier.tuning_of(classifier.encode(reviews(41), learn=True)).layout

    def fitted() -> dict[str, np.ndarray]:
        classifier = tpulm.Classifier(encoder, **settings, hardware={"data": 2})
        return named_leaves(classifier.fit(reviews(41), reviews(16, seed=1)).params)

    assert (layout(data=2).batch_size, layout(microbatch_size=4).batch_size) == (42, 48)
    small = fitted()
    monkeypatch.setattr(finetuning_program, "_batch_size", lambda config, *_: config.batch_size)
    for name, leaf in fitted().items():
        np.testing.assert_allclose(small[name], leaf, atol=1e-5, err_msg=name)


def test_saving_replaces_a_classifier_and_nothing_else(fitted: tpulm.Classifier, tmp_path: Path) -> None:
    saved, project = tmp_path / "saved", tmp_path / "project"
    for folder in (saved, project):
        folder.mkdir()
    (saved / "model.safetensors").write_bytes(b"of an upload that was killed")
    for _ in range(2):
        fitted.save_pretrained(saved)
    for name in ("notes/kept.txt", "app.py", ".gitignore"):
        kept = saved / name
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("mine")
        with pytest.raises(ConfigError, match=rf"\({name.split('/')[0]}\)"):
            fitted.save_pretrained(saved)
        assert kept.read_text() == "mine"
        shutil.rmtree(kept.parent) if "/" in name else kept.unlink()
    (project / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json"):
        fitted.save_pretrained(project)
    assert (project / "config.json").read_text() == "{}"


# -- refusals ---------------------------------------------------------------------------------------------------------------


def test_what_is_no_list_of_texts(fitted: tpulm.Classifier) -> None:
    cases: list[tuple[Any, str]] = [("good", "one string"), ({"texts": ["good"]}, "'texts'"), ([("good", "")], "second text")]
    cases += [([5], "example 0"), *((["good", one], "example 1") for one in (" ", None))]
    for texts, message in [*cases, ([("good", "film"), ("good",)], "example 1")]:
        for predict in (fitted.predict, fitted.predict_proba):
            with pytest.raises(DataError, match=message):
                predict(texts)
    with pytest.raises(DataError, match="text 2, pair 1"):
        fitted.predict(["good", "bad"], ["film"])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epoch": 3}, "'epochs'"),
        *(({"labels": some}, type(some).__name__) for some in ({"neg", "pos"}, "np", b"np", {"neg": 0, "pos": 1}, 2)),
        ({"labels": ("a", "b"), "task": "regression"}, "labels"),
        ({"task": "regression", "pooling": "cls"}, "pooling"),
        ({"checkpoint": {"keep_at_words": [1_000]}}, "keep_at_words"),
        ({"config": FinetuneConfig(), "max_length": 16}, "max_length"),
    ],
)
def test_settings(encoder: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        tpulm.Classifier(encoder, **settings)


def test_what_cannot_be_trained_or_used(encoder: Path) -> None:
    for task in ("tag", "regression", "embed"):
        with pytest.raises(ConfigError, match=f"causal.* for classification and multilabel, and the task is {task}"):
            tpulm.Classifier(built("decoder"), task=task, **QUICK)
    with pytest.raises(ConfigError, match="batch_size 13"):
        tpulm.Classifier(encoder, batch_size=13, max_length=16).fit(reviews(64))
    for labels, message in ((("a", "b"), "trained"), (None, "labels")):
        with pytest.raises(ConfigError, match=message):
            tpulm.Classifier(encoder, labels=labels, max_length=16).predict(["good"])
