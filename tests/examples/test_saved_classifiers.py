"""Where a classifier is saved: a model is replaced, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpulm
from tpulm.errors import ConfigError
from tpulm.finetuning.classifier import _FILES


def test_a_folder_of_other_files_is_not_replaced_by_a_model(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    classifier = tpulm.Classifier(pretrained, labels=("a", "b"))
    with pytest.raises(ConfigError, match="holds what is no part of a saved classifier"):
        classifier.save_pretrained(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_new_folder_an_empty_one_and_a_model_whole_or_not_can_be_saved_to(pretrained: Path, tmp_path: Path) -> None:
    classifier = tpulm.Classifier(pretrained, labels=("a", "b"), epochs=1, batch_size=8)
    classifier.fit([(f"the cat {number}", "ab"[number % 2]) for number in range(16)])
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "model.safetensors").write_bytes(b"of an upload that was killed")
    for folder in (tmp_path / "new", tmp_path / "empty", tmp_path / "half", tmp_path / "new"):
        classifier.save_pretrained(folder)
        assert tpulm.Classifier(folder).labels == classifier.labels
        names = {path.name for path in folder.iterdir()}
        assert names <= _FILES
