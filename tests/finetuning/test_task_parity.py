"""What is saved computes the same in transformers and sentence-transformers: each task, each kind of encoder.

All parameters are random, biases and scales of norms, too, so that none can be left out or mistaken for another unnoticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from task_examples import examples_of, untrained

import tpulm
from encoders import WORDS
from tpulm.convert.importing import import_model
from tpulm.errors import DataError
from tpulm.labelled.rows import encode_rows

CLASSES = {"tag": "TokenClassification", "qa": "QuestionAnswering", "choice": "MultipleChoice"}
KINDS = {
    "classification": "bert electra megatron eurobert modernbert decoder llama",
    "regression": "bert",
    "multilabel": "bert decoder",
    "tag": "bert eurobert modernbert",
    "qa": "bert modernbert",
    "choice": "bert electra modernbert",
}


def saved(kind: str, task: str, folder: Path, **settings: Any) -> tuple[tpulm.Classifier, Any]:
    """`untrained`, saved to `folder`."""
    classifier, data = untrained(task, kind, **settings)
    classifier.save_pretrained(folder)
    return classifier, data


@pytest.mark.parametrize(("task", "kind"), [(task, kind) for task, kinds in KINDS.items() for kind in kinds.split()])
def test_outputs_are_those_of_transformers(task: str, kind: str, torch: ModuleType, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    classifier, data = saved(kind, task, tmp_path)
    loader = getattr(transformers, f"AutoModelFor{CLASSES.get(task, 'SequenceClassification')}")
    model = loader.from_pretrained(tmp_path).eval()
    ours, rows = classifier.outputs(data), data.rows
    groups = np.arange(len(rows)) if rows.of is None else rows.of
    for group in np.unique(groups):
        numbers = np.flatnonzero(groups == group)
        ids = [rows.ids[rows.starts[number] : rows.starts[number + 1]] for number in numbers]
        with torch.no_grad():
            types = kind not in ("modernbert", "eurobert", "llama", "decoder")
            found = model(**inputs_of(torch, ids, types=types, grouped=task == "choice"))
        if task == "qa":
            expected = np.stack([found.start_logits[0].numpy(), found.end_logits[0].numpy()], axis=-1)
        else:
            expected = found.logits[0].numpy()
        mine = ours[numbers, 0] if task == "choice" else ours[numbers[0]]
        np.testing.assert_allclose(mine[: len(expected)], expected, atol=1e-4, rtol=1e-4)
    if classifier.labels is not None:
        assert model.config.id2label == dict(enumerate(classifier.labels.names))
        assert model.config.label2id == {name: number for number, name in enumerate(classifier.labels.names)}
    assert (model.config.problem_type == "multi_label_classification") is (task == "multilabel")


def inputs_of(torch: Any, rows: list[np.ndarray], *, types: bool, grouped: bool) -> dict[str, Any]:
    """The rows padded to one length, [1, choices, L] where they are choices."""
    length = max(map(len, rows))
    ids = np.stack([np.pad(row, (0, length - len(row))) for row in rows]).astype(np.int64)
    mask = np.stack([np.arange(length) < len(row) for row in rows]).astype(np.int64)
    second = (np.cumsum(ids == 3, axis=-1) - (ids == 3) == 1).astype(np.int64) * mask
    given = {"input_ids": ids, "attention_mask": mask} | ({"token_type_ids": second} if types else {})
    return {name: torch.tensor(value[None] if grouped else value) for name, value in given.items()}


def by_the_pipeline(folder: Path, texts: list[str], **given: Any) -> list[list[float]]:
    """Scores by transformers, in the order of the labels' names; texts are padded to one length."""
    transformers: Any = pytest.importorskip("transformers")
    found = transformers.pipeline("text-classification", str(folder), top_k=None)(texts, batch_size=len(texts), **given)
    return [[score for _, score in sorted((one["label"], one["score"]) for one in scores)] for scores in found]


@pytest.mark.parametrize("kind", ["bert", "decoder", "llama"])
def test_the_pipeline_of_transformers_gives_the_same_probabilities(kind: str, torch: ModuleType, tmp_path: Path) -> None:
    classifier, _ = saved(kind, "multilabel", tmp_path)
    texts = [*(text for text, _ in examples_of("multilabel", 4)), "good"]
    expected = classifier.predict_proba(texts)
    np.testing.assert_allclose(by_the_pipeline(tmp_path, texts), expected, atol=1e-4)
    answers = tpulm.classify(tmp_path, texts)
    assert [list(one.labels or ()) for one in answers] == classifier.predict(texts)
    np.testing.assert_allclose([list((one.probabilities or {}).values()) for one in answers], expected, atol=1e-6)


def test_a_tokenizer_that_truncates_on_the_left_keeps_the_ends(torch: ModuleType, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    saved("bert", "multilabel", tmp_path / "right")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "right")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "right", truncation_side="left")
    model.save_pretrained(tmp_path / "left")
    tokenizer.save_pretrained(tmp_path / "left")
    texts, others = (
        ["the film was good " * 6, "bad " * 9 + "plot and cast", "good"],
        ["the plot", "very bad " * 9 + "cast", "bad"],
    )
    import_model(tmp_path / "left", tmp_path / "imported")
    for folder in (tmp_path / "left", tmp_path / "imported"):
        found = [list((one.probabilities or {}).values()) for one in tpulm.classify(folder, texts)]
        np.testing.assert_allclose(found, by_the_pipeline(folder, texts, truncation=True), atol=1e-5)
        assert transformers.AutoTokenizer.from_pretrained(folder).truncation_side == "left"
        rows = encode_rows(tpulm.load_model(folder).tokenization, texts, others, max_length=16)
        expected = tokenizer(texts, others, truncation=True, max_length=16).input_ids
        assert [part.tolist() for part in np.split(rows.ids, rows.starts[1:-1])] == expected
    (tmp_path / "left" / "tokenizer_config.json").write_text('{"truncation_side": "top"}')
    with pytest.raises(DataError, match="truncation_side is 'top'"):
        tpulm.load_model(tmp_path / "left")


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_pairs_are_read_as_by_the_saved_tokenizer(kind: str, tmp_path: Path) -> None:
    """Of a causal model [SEP] A [SEP] B [SEP]: in pretraining it has never seen [CLS]."""
    from transformers import AutoTokenizer

    classifier, _ = saved(kind, "classification", tmp_path)
    texts, others = ["the film was good", "good " * 12, "[SEP] film"], ["the plot", "bad " * 9, "the cast"]
    rows = classifier.encode({"text": texts, "pair": others, "label": ["neg", "pos", "neg"]}).rows
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    expected = tokenizer(texts[:2], others[:2], truncation=True)
    assert [part.tolist() for part in np.split(rows.ids, rows.starts[1:-1])][:2] == expected.input_ids
    first = WORDS.index("[SEP]" if kind == "llama" else "[CLS]")
    assert rows.ids[rows.starts[:-1]].tolist() == [first] * 3 and ("token_type_ids" in expected) == (kind == "bert")
    again = tpulm.Classifier(tmp_path)
    np.testing.assert_array_equal(again.predict_proba(texts, others), classifier.predict_proba(texts, others))


@pytest.mark.parametrize(("kind", "pooling"), [("bert", "mean"), ("bert", "cls"), ("eurobert", "mean"), ("modernbert", "cls")])
def test_vectors_are_those_of_sentence_transformers(kind: str, pooling: Any, tmp_path: Path, torch: ModuleType) -> None:
    theirs: Any = pytest.importorskip("sentence_transformers")
    transformers: Any = pytest.importorskip("transformers")
    ours, _ = saved(kind, "embed", tmp_path, pooling=pooling)
    texts = [text for text, _, _ in examples_of("embed", 6)] + ["good", "the film was bad and the plot was very very bad " * 3]
    model = theirs.SentenceTransformer(str(tmp_path))
    found = np.stack(ours.predict(texts))
    assert (model.max_seq_length, model.similarity_fn_name) == (16, "cosine")
    np.testing.assert_allclose(found, model.encode(texts), atol=1e-4)
    np.testing.assert_allclose(found, tpulm.embed(tmp_path, texts), atol=1e-6)
    pairs = list(zip(texts[:4], texts[4:], strict=True))
    expected = theirs.util.pairwise_cos_sim(*(torch.from_numpy(model.encode(list(part))) for part in zip(*pairs, strict=True)))
    np.testing.assert_allclose(ours.predict(pairs), expected, atol=1e-4)
    encoder = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(encoder).__name__ == json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    assert tpulm.Classifier(tmp_path).config.pooling == pooling


def test_texts_of_a_model_that_names_no_length_are_read_as_far_as_by_the_pipeline(torch: ModuleType, tmp_path: Path) -> None:
    """Not as far as a new model's texts, 128 tokens, whoever reads them here."""
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=160, initializer_range=0.6, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizerFast(vocab_file=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    texts = [" ".join(WORDS[5 + number :] * 15) for number in range(2)]  # 152 tokens and 137
    classifier = tpulm.Classifier(tmp_path)
    found = classifier.predict_proba(texts)
    np.testing.assert_allclose(found, by_the_pipeline(tmp_path, texts), atol=1e-5)
    np.testing.assert_allclose([list((one.probabilities or {}).values()) for one in tpulm.classify(tmp_path, texts)], found)
    classifier.predict(texts)
    assert classifier.cut == 0
