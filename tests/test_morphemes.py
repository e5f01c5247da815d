"""A run whose tokenizer cuts morphemes first: from text to a model, what the model card says, and the model in use."""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import tpulm
from toy_runs import SIZES, Notes, toy_config
from tpulm import dataset, pipeline, storage, tokenization
from tpulm.config import RunConfig
from tpulm.convert.continuing import starting_point
from tpulm.errors import MissingExtra, WorkFolderMismatch
from tpulm.pipeline import preparation
from tpulm.tokenization import analysers

SENTENCES = {
    "mecab": ["吾輩は猫である。", "名前はまだ無い。", "どこで生れたか見当がつかぬ。", "猫は名前が無い。", "吾輩はまだ見た。"],
    "kiwi": ["영화를 봤다.", "재미있었어요ㅋㅋㅋ", "하늘을 나는 새를 봤다.", "영화가 정말 좋았다.", "카페에서 새를 만났다."],
}


def toy(folder: Path, analyser: str) -> RunConfig:
    rng = random.Random(0)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(rng.choices(SENTENCES[analyser], k=rng.randint(1, 5))) for _ in range(150)))
    return toy_config(
        text,
        tokenizer={"vocab_size": 48, "morphemes": analyser},
        data={"sequence_length": 48, "rows": "packed"},
        model=SIZES | {"max_positions": 48},
        train={"steps": 3, "batch_size": 8, "objective": {"whole_words": True}},
    )


@pytest.mark.slow
@pytest.mark.parametrize("analyser", ["mecab", "kiwi"])
def test_from_text_to_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, analyser: analysers.Name) -> None:
    pytest.importorskip({"mecab": "fugashi", "kiwi": "kiwipiepy"}[analyser])
    config, workdir, progress = toy(tmp_path, analyser), tmp_path / "w", Notes()
    summary = pipeline.run(config, workdir, progress=progress)
    assert any("read by tpulm alone" in note for note in progress.notes) is (analyser == "kiwi")
    manifest = dataset.load_manifest(workdir)
    assert manifest is not None and manifest.inputs["analyser"] == analysers.versions(analyser)
    assert manifest.train.counts.unknown_tokens == 0 and manifest.train.rows.columns == ("tokens",)

    card = (Path(summary.export) / "README.md").read_text()
    assert ("cannot be loaded by transformers" in card) is (analyser == "kiwi")
    assert ("pip install fugashi unidic-lite" in card) is (analyser == "mecab")

    model = tpulm.load_model(summary.export)
    sentence = SENTENCES[analyser][0]
    assert model.tokenization.encode_one(sentence) == tokenization.load(workdir / "tokenizer").encode_one(sentence)
    (answers,) = tpulm.fill_mask(model, f"{sentence[:3]}[MASK]{sentence[4:]}", top=3)
    assert len(answers) == 3 and all(answer.text.startswith(sentence[:3]) for answer in answers)
    if analyser == "mecab":
        theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(summary.export)
        assert theirs(sentence)["input_ids"] == model.tokenization.encode_one(sentence)
        classifier = tpulm.Classifier(summary.export, labels=("cat", "none"), batch_size=8)
        classifier.params = classifier.first_params(0)
        classifier.save_pretrained(tmp_path / "classifier")
        texts = SENTENCES["mecab"]
        found = tpulm.Classifier(tmp_path / "classifier").predict_proba(texts)
        np.testing.assert_array_equal(found, classifier.predict_proba(texts))

    assert starting_point(storage.as_path(summary.export)).tokenizer["morphemes"] == analyser
    with monkeypatch.context() as without:
        for function in ("load", "versions"):
            without.setattr(analysers, function, Mock(side_effect=MissingExtra(analyser)))
        preparation.prepare_data(config, workdir)  # all is there: nothing is cut again

    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "package": "0"})
    with pytest.raises(WorkFolderMismatch, match=r"analyser\.package: \(none\) -> .0"):
        pipeline.run(config, workdir)
