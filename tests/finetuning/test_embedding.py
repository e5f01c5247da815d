"""Embeddings: losses and ranks are those of sentence-transformers; the files that it reads, and the commands."""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from task_examples import NO_EXAMPLES, NO_ROWS, examples_of, untrained, write_jsonl

import tpulm
from command_line import invoke
from encoders import hub_of
from tpulm import storage
from tpulm.config import ModelConfig
from tpulm.finetuning import Retrieval
from tpulm.nn.transformer import Execution
from tpulm.objectives.classification import LabelledInputs, RankedTexts, ScoredPairs
from tpulm.special_tokens import SpecialTokens
from tpulm.train.finetuning_program import Labelled

SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 16, "learning_rate": 3e-3, "max_length": 16, "dropout": 0.0}


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
    """For random vectors; rows that only fill the batch count for nothing."""
    losses: Any = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    rng = np.random.default_rng(0)
    for rows in (2, 12):
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


def test_ranks_are_those_of_sentence_transformers(torch: ModuleType, tmp_path: Path) -> None:
    """Its InformationRetrievalEvaluator, on random vectors: anchors with one or two texts, and texts that belong to none."""
    evaluation: Any = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels = np.array([0, 100, 200]) + rng.integers(0, [15, 20, 20], (24, 3))
        table = unit(rng, 300, 6)
        outputs = table[labels]
        corpus = {str(one): "" for one in np.unique(labels[:, 1:])}
        relevant = {str(a): {str(b) for b in labels[labels[:, 0] == a, 1]} for a in np.unique(labels[:, 0])}
        evaluator = evaluation.InformationRetrievalEvaluator(dict.fromkeys(relevant, ""), corpus, relevant)
        cosines = [{one: float(table[int(query)] @ table[int(one)]) for one in corpus} for query in evaluator.queries_ids]
        theirs = evaluator.compute_metrics([[{"corpus_id": k, "score": v} for k, v in of.items()] for of in cosines])
        found = Retrieval().scores(outputs, Labelled(NO_ROWS, labels.astype(np.int32), NO_EXAMPLES), ())
        assert found["mrr_at_10"] == pytest.approx(theirs["mrr@k"][10], abs=1e-9)
        assert [found[f"recall_at_{k}"] for k in (1, 10)] == pytest.approx([theirs["recall@k"][k] for k in (1, 10)], abs=1e-9)


def test_ranks_of_equal_vectors_are_the_last() -> None:
    labels = np.stack([np.arange(20), 100 + np.arange(20), np.full(20, -1)], 1).astype(np.int32)
    found = Retrieval().scores(np.ones((20, 3, 1), np.float32), Labelled(NO_ROWS, labels, NO_EXAMPLES), ())
    assert found == {"mrr_at_10": 0.0, "recall_at_1": 0.0, "recall_at_10": 0.0}


def test_a_model_of_the_hub_has_its_pooling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, cache, texts = tmp_path / "repository", tmp_path / "cache", ["the film was good"]
    model, _ = untrained("embed")
    for _ in range(2):  # the second time in its own place
        model.save_pretrained(repository)
    expected = tpulm.embed(repository, texts)
    for name in ("onnx/config.json", "openvino/vocab.txt", "2_Normalize/model.safetensors"):
        storage.write_atomic(storage.make_folder((repository / name).parent) / PurePath(name).name, "{}")
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(repository, cache))
    np.testing.assert_array_equal(tpulm.embed("sentence-transformers/all-MiniLM-L6-v2", texts), expected)
    files = {"1_Pooling/config.json", "2_Normalize/config.json"}
    assert {path.relative_to(cache).as_posix() for path in cache.glob("*/*")} == files


@pytest.mark.slow
def test_the_commands_for_embeddings(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["a\tb\tscore", *("\t".join(map(str, row)) for row in examples_of("embed", 320))]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    write_jsonl(tmp_path / "dev.jsonl", "embed", examples_of("embed", 64, seed=1))
    given = ["--task", "embed", "--train", "train.tsv", "--text-column", "a", "--pair-column", "b", "--label-column", "score"]
    given += ["--dev", "dev.jsonl", "--dev-column", "text=text", "--dev-column", "pair=pair", "--dev-column", "label=label"]
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    done = invoke("finetune", str(encoder), *given, *settings, "--output", "sts", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["chosen_by"] == "dev_spearman"
    assert (tmp_path / "sts" / "1_Pooling" / "config.json").exists() and (tmp_path / "sts" / "report" / "index.html").exists()
    done = invoke("embed", "sts", "the film was good", "the plot was very good", "the film was bad", "--json")
    vectors = np.array([one["embedding"] for one in json.loads(done.stdout)])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] and "Cosines" in done.stderr
    assert invoke("embed", "sts", "--input", "dev.jsonl", "--output", "dev.npy").returncode == 0
    assert invoke("embed", "sts", "--input", "dev.jsonl", "--output", "dev.jsonl.gz").returncode == 0
    table = np.load(tmp_path / "dev.npy")
    assert table.shape == (64, 32) and table.dtype == np.float32
    columns = tpulm.Columns(label="embedding")
    rows = list(tpulm.read_examples(tmp_path / "dev.jsonl.gz", columns, fault=lambda _: None).labels or [])
    np.testing.assert_allclose(np.array(rows), table, atol=1e-6)
    assert invoke("classify", "sts", "good").stderr.count("tpulm embed") == 1
