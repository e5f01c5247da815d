"""Embeddings: losses, scores and vectors are those of sentence-transformers; files, resuming, and what is wrong in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import tpulm
from command_line import invoke
from encoders import build_encoder, reviews
from tpulm import storage
from tpulm.config import FinetuneConfig, ModelConfig
from tpulm.errors import ConfigError, DataError
from tpulm.finetuning import Retrieval, ScoredSimilarity
from tpulm.finetuning.tasks import doubts_about_model, find_task
from tpulm.labelled import regression_scores
from tpulm.labelled.rows import Rows
from tpulm.nn.transformer import Execution
from tpulm.objectives.classification import LabelledInputs
from tpulm.objectives.embedding import RankedTexts, ScoredPairs
from tpulm.special_tokens import SpecialTokens
from tpulm.train.tuning import Labelled

SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 16, "learning_rate": 3e-3, "max_length": 16, "dropout": 0.0}
NO_ROWS = Rows(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int64))


def scored(count: int, seed: int = 0) -> list[tuple[str, str, float]]:
    """Of two reviews: 4 where both are good or both bad, less 1 where one of them is longer."""
    texts = reviews(2 * count, seed=seed)
    order = np.random.default_rng(seed).permutation(2 * count)
    pairs = [(texts[a], texts[b]) for a, b in order.reshape(-1, 2)]
    return [(a, b, 4.0 * (x == y) - (len(a.split()) != len(b.split()))) for (a, x), (b, y) in pairs]


def related(count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """A heap of words about one of six things, the sentence that says it, and one that says the contrary."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        thing, kind = ("film", "plot", "cast")[rng.integers(3)], ("good", "bad")[rng.integers(2)]
        words = [thing, kind, *rng.choice(["the", "and", "was", "very", "."], size=rng.integers(2, 5))]
        contrary = "bad" if kind == "good" else "good"
        found.append((" ".join(rng.permutation(words)), f"the {thing} was {kind}", f"the {thing} was {contrary}"))
    return found


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = rng.normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def loss_of(kind: type[ScoredPairs | RankedTexts], outputs: np.ndarray, labels: np.ndarray, rows: int) -> float:
    execution = Execution(dtype=jnp.float32, remat="none", unroll=False)
    objective = kind(ModelConfig(), execution, 16, 99, SpecialTokens(0, 1, 2, 3, 4), None)
    weights = (np.arange(len(labels)) < rows).astype(np.float32)
    nothing: Any = None
    sums = objective.sums(jnp.asarray(outputs), LabelledInputs(nothing, jnp.asarray(labels), jnp.asarray(weights), nothing))
    return objective.metrics(sums)["loss"]


def test_losses_are_those_of_sentence_transformers(torch: ModuleType) -> None:
    """Of random vectors; rows that only fill the batch count for nothing."""
    losses: Any = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    rng = np.random.default_rng(0)
    for rows in (2, 5, 12):
        outputs = unit(rng, rows + 3, 3, 8)
        anchor, own, other = (torch.from_numpy(outputs[:rows, part]) for part in range(3))
        scores = rng.integers(0, 4, rows + 3).astype(np.float32)
        expected = losses.CoSENTLoss(None).compute_loss_from_embeddings([anchor, own], torch.from_numpy(scores[:rows]))
        assert loss_of(ScoredPairs, outputs, scores, rows) == pytest.approx(float(expected), abs=1e-5)
        labels = np.arange(3 * (rows + 3), dtype=np.int32).reshape(-1, 3)
        ranking = losses.MultipleNegativesRankingLoss(None)
        expected = ranking.compute_loss_from_embeddings([anchor, own, other], None)
        assert loss_of(RankedTexts, outputs, labels, rows) == pytest.approx(float(expected), abs=1e-5)
        labels[:, 2] = -1
        expected = ranking.compute_loss_from_embeddings([anchor, own], None)
        assert loss_of(RankedTexts, outputs, labels, rows) == pytest.approx(float(expected), abs=1e-5)


def test_what_belongs_to_an_anchor_is_never_a_wrong_answer() -> None:
    """Two rows of one anchor with texts of their own, and two that share a text: each is left with one text besides its own."""
    outputs = unit(np.random.default_rng(0), 4, 3, 8)
    labels = np.array([[0, 10, -1], [0, 11, -1], [1, 12, -1], [2, 12, -1]], np.int32)
    cosines = 20.0 * (outputs[:, 0] @ outputs[:, 1].T).astype(np.float64)
    wrong = [[2, 3], [2, 3], [0, 1], [0, 1]]
    expected = [np.logaddexp.reduce([row[i], *row[others]]) - row[i] for i, (row, others) in enumerate(zip(cosines, wrong))]  # noqa: B905
    assert loss_of(RankedTexts, outputs, labels, 4) == pytest.approx(np.mean(expected), abs=1e-5)


def test_correlations_are_those_of_scipy_with_ties() -> None:
    stats: Any = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for _ in range(1_000):
        gold, said = rng.integers(0, 5, 12).astype(np.float64), rng.integers(0, 6, 12) / 7.0
        if np.ptp(gold) and np.ptp(said):
            expected = stats.pearsonr(gold, said).statistic, stats.spearmanr(gold, said).statistic
            np.testing.assert_allclose(regression_scores(gold, said)[:2], expected, rtol=0, atol=1e-12)


def test_ranks_are_those_of_sentence_transformers(torch: ModuleType, tmp_path: Path) -> None:
    """Its InformationRetrievalEvaluator, on random vectors: anchors with one or two texts, and texts that belong to none."""
    evaluation: Any = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    rng = np.random.default_rng(0)
    for _ in range(20):
        count = 24
        labels = np.stack([rng.integers(0, 15, count), 100 + rng.integers(0, 20, count), 200 + rng.integers(0, 20, count)], 1)
        table = unit(rng, 300, 6)
        outputs = table[labels]
        corpus = {str(one): "" for one in np.unique(labels[:, 1:])}
        relevant = {str(a): {str(b) for b in labels[labels[:, 0] == a, 1]} for a in np.unique(labels[:, 0])}
        evaluator = evaluation.InformationRetrievalEvaluator(dict.fromkeys(relevant, ""), corpus, relevant)
        hits = [
            [{"corpus_id": one, "score": float(table[int(query)] @ table[int(one)])} for one in corpus]
            for query in evaluator.queries_ids
        ]
        theirs = evaluator.compute_metrics(hits)
        found = Retrieval().scores(outputs, Labelled(NO_ROWS, labels.astype(np.int32)), ())
        assert found["mrr_at_10"] == pytest.approx(theirs["mrr@k"][10], abs=1e-9)
        for k in (1, 10):
            assert found[f"recall_at_{k}"] == pytest.approx(theirs["recall@k"][k], abs=1e-9)


def test_ranks_of_equal_vectors_are_the_last() -> None:
    labels = np.stack([np.arange(20), 100 + np.arange(20), np.full(20, -1)], 1).astype(np.int32)
    found = Retrieval().scores(np.ones((20, 3, 1), np.float32), Labelled(NO_ROWS, labels), ())
    assert found == {"mrr_at_10": 0.0, "recall_at_1": 0.0, "recall_at_10": 0.0}


@pytest.mark.parametrize(
    ("kind", "pooling"), [("bert", "mean"), ("bert", "cls"), ("electra", "mean"), ("eurobert", "mean"), ("modernbert", "cls")]
)
def test_sentence_transformers_computes_the_same_vectors(kind: str, pooling: Any, tmp_path: Path, torch: ModuleType) -> None:
    theirs: Any = pytest.importorskip("sentence_transformers")
    transformers: Any = pytest.importorskip("transformers")
    settings = {**SETTINGS, "epochs": 1, "pooling": pooling}
    ours = tpulm.Classifier(build_encoder(kind, tmp_path), task="embed", **settings).fit(scored(64), scored(16, 1))
    ours.save_pretrained(tmp_path / "out")
    texts = [text for text, _ in reviews(6, seed=2)] + ["good", "the film was bad and the plot was very very bad " * 3]
    model = theirs.SentenceTransformer(str(tmp_path / "out"))
    found = np.stack(ours.predict(texts))
    np.testing.assert_allclose(found, model.encode(texts), atol=1e-4)
    np.testing.assert_allclose(found, tpulm.embed(tmp_path / "out", texts), atol=1e-6)
    pairs = list(zip(texts[:4], texts[4:], strict=True))
    expected = theirs.util.pairwise_cos_sim(*(torch.from_numpy(model.encode(list(part))) for part in zip(*pairs, strict=True)))
    np.testing.assert_allclose(ours.predict(pairs), expected, atol=1e-4)
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "out")
    assert type(encoder).__name__ == json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
    again = tpulm.Classifier(tmp_path / "out")
    assert (again.config.task, again.config.pooling) == ("embed", pooling)
    np.testing.assert_allclose(np.stack(again.predict(texts)), found, atol=1e-6)


def test_the_files_that_say_how_to_pool(encoder: Path, tmp_path: Path) -> None:
    """As sentence-transformers documents them: https://sbert.net/docs/sentence_transformer/usage/custom_models.html."""
    ours = tpulm.Classifier(encoder, task="embed", **{**SETTINGS, "epochs": 1}).fit(scored(32), scored(16, 1))
    ours.save_pretrained(tmp_path / "out")
    ours.save_pretrained(tmp_path / "out")  # in its own place

    def values(name: str) -> Any:
        return json.loads((tmp_path / "out" / name).read_text())

    modules = [(one["idx"], one["path"], one["type"].rpartition(".")[2]) for one in values("modules.json")]
    assert modules == [(0, "", "Transformer"), (1, "1_Pooling", "Pooling"), (2, "2_Normalize", "Normalize")]
    pooling = values("1_Pooling/config.json")
    assert pooling["word_embedding_dimension"] == 32
    assert [name for name, value in pooling.items() if value is True] == ["include_prompt", "pooling_mode_mean_tokens"]
    assert values("sentence_bert_config.json") == {"max_seq_length": 16, "do_lower_case": False}
    assert values("config_sentence_transformers.json")["similarity_fn_name"] == "cosine"
    (tmp_path / "out" / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
    with pytest.raises(DataError, match="'max'"):
        tpulm.load_model(tmp_path / "out")


def jsonl(path: Path, rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> Path:
    path.write_text("".join(f"{json.dumps(dict(zip(names, row, strict=True)))}\n" for row in rows))
    return path


@pytest.mark.slow
def test_scored_pairs_from_files(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["a\tb\tscore", *("\t".join(map(str, row)) for row in scored(320))]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    jsonl(tmp_path / "dev.jsonl", scored(64, 1), ("text", "other", "label"))
    given = ["--task", "embed", "--train", "train.tsv", "--text-column", "a", "--pair-column", "b", "--label-column", "score"]
    given += ["--dev", "dev.jsonl", "--dev-column", "text=text", "--dev-column", "pair=other", "--dev-column", "label=label"]
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    done = invoke("finetune", str(encoder), *given, *settings, "--output", "sts", "--json")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["dev_spearman"] > 0.8 and values["chosen_by"] == "dev_spearman" and values["health"] == "all right"
    assert "SentenceTransformer" in (tmp_path / "sts" / "README.md").read_text()
    assert (tmp_path / "sts" / "1_Pooling" / "config.json").exists() and (tmp_path / "sts" / "report" / "index.html").exists()
    done = invoke("embed", "sts", "the film was good", "the plot was very good", "the film was bad", "--json")
    vectors = np.array([one["embedding"] for one in json.loads(done.stdout)])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] and "Cosines" in done.stderr
    assert invoke("embed", "sts", "--input", "dev.jsonl", "--output", "dev.npy").returncode == 0
    assert invoke("embed", "sts", "--input", "dev.jsonl", "--output", "dev.jsonl.gz").returncode == 0
    table = np.load(tmp_path / "dev.npy")
    assert table.shape == (64, 32) and table.dtype == np.float32
    rows = list(
        tpulm.read_examples(tmp_path / "dev.jsonl.gz", tpulm.Columns(label="embedding"), fault=lambda _: None).labels or []
    )
    np.testing.assert_allclose(np.array(rows), table, atol=1e-6)
    assert invoke("classify", "sts", "good").stderr.count("tpulm embed") == 1


def test_in_cloud_storage(encoder: Path, tmp_path: Path, gcs: Any) -> None:
    train = jsonl(tmp_path / "train.jsonl", scored(48), ("text", "pair", "label"))
    storage.write_atomic("gs://runs/train.jsonl", train.read_bytes())
    settings: Any = {**SETTINGS, "epochs": 1, "task": "embed", "pooling": "cls"}
    tpulm.finetune(encoder, "gs://runs/train.jsonl", "gs://runs/sts", **settings)
    assert tpulm.Classifier("gs://runs/sts").config.pooling == "cls"
    assert tpulm.embed("gs://runs/sts", ["a good film"]).shape == (1, 32)


@pytest.mark.slow
def test_triplets_from_files(encoder: Path, tmp_path: Path) -> None:
    train = jsonl(tmp_path / "train.jsonl", related(320), ("text", "pair", "negative"))
    dev = jsonl(tmp_path / "dev.jsonl", related(32, 1), ("text", "pair", "negative"))
    arguments: Any = {"train": train, "dev": dev, "task": "retrieve", "columns": tpulm.Columns(negative="negative"), **SETTINGS}
    values = tpulm.finetune(encoder, output=tmp_path / "out", **arguments).values()
    assert values["dev_mrr_at_10"] > 0.95 and values["dev_recall_at_10"] == 1.0 and values["health"] == "all right"


@pytest.fixture(scope="module")
def retriever(encoder: Path) -> Iterator[tpulm.Classifier]:
    pairs = [(a, b) for a, b, _ in related(320)]
    yield tpulm.Classifier(encoder, task="retrieve", **SETTINGS).fit(pairs, [(a, b) for a, b, _ in related(32, 1)])


def test_pairs_in_memory(retriever: tpulm.Classifier) -> None:
    pairs = [(a, b) for a, b, _ in related(32, 2)]
    assert retriever.evaluate(pairs)["mrr_at_10"] > 0.95
    columns = {"text": [a for a, _ in pairs], "pair": [b for _, b in pairs]}
    assert retriever.evaluate(columns) == retriever.evaluate(pairs)
    vectors = np.stack(retriever.predict(["film good", "the film was good", "the cast was bad"]))
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


def test_what_is_wrong_is_said(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="embed takes pairs of texts with a score"):
        tpulm.Classifier(encoder, task="embed").encode([("a film", 1.0)])
    with pytest.raises(DataError, match="'much'"):
        tpulm.Classifier(encoder, task="embed").encode([("film", "plot", 1.0), ("film", "plot", "much")])
    with pytest.raises(DataError, match="all 2 pairs"):
        tpulm.Classifier(encoder, task="embed").encode([("film", "plot", 1.0)] * 2, learn=True)
    with pytest.raises(DataError, match="example 0"):
        tpulm.Classifier(encoder, task="retrieve").encode([("film", "plot", " ")])
    with pytest.raises(DataError, match="one text belongs to all 2 anchors"):
        tpulm.Classifier(encoder, task="retrieve").encode([("film", "cast"), ("plot", "cast")], learn=True)
    (path := tmp_path / "a.tsv").write_text("y\tpair\na film\ta plot\n")
    with pytest.raises(DataError, match=r"there is no column 'text'"):
        tpulm.finetune(encoder, path, tmp_path / "out", task="retrieve")
    with pytest.raises(ConfigError, match="pooling is of embed, retrieve and ModernBERT, and the task is regression"):
        tpulm.Classifier(encoder, task="regression", pooling="cls")


def test_one_vector_for_everything_is_said() -> None:
    rng, labels = np.random.default_rng(0), np.arange(8, dtype=np.float32)
    data, task = Labelled(NO_ROWS, labels), find_task(FinetuneConfig(task="embed"))
    outputs = np.ones((8, 2, 4), np.float32) / 2 + rng.normal(size=(8, 2, 4)).astype(np.float32) * 1e-3
    found = doubts_about_model(outputs, data, training=data, before=0.9, task=task, names=())
    assert found[0].startswith("all texts get nearly the same vector: the mean cosine of two is 1.00")
    assert found[1].startswith("training did not help: its spearman on dev")
    assert ScoredSimilarity().doubts(unit(rng, 8, 2, 4), data, training=data, names=()) == []
