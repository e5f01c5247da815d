"""The NSMC experiment, on reviews made up here: it pretrains, fine-tunes, reports, and has nothing to do a second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoders import reviews, write_tsv
from tpulm.config import load

EXPERIMENT = Path(__file__).parents[2] / "examples" / "nsmc"
SIZES = """
[tokenizer]
vocab_size = 60
[data]
sequence_length = 32
rows = "packed"
next_sentence = false
[model]
num_layers = 1
hidden_size = 32
num_heads = 2
intermediate_size = 64
max_positions = 32
[train]
batch_size = 8
evaluate_every_steps = 2
[train.optimizer]
warmup_steps = 0
[corpus]
holdout_fraction = 0.1
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "bert.toml").write_text(f'extends = "bert-tiny"\n{SIZES}')
    embedding = SIZES.replace("[train]", "embedding_size = 32\n[model.generator]\nwidth = 0.5\n[train]")
    (folder / "electra.toml").write_text(f'extends = "electra-small"\n{embedding}')
    experiment = "pretraining_teraflops = 0.0005\nsizes = [40, 0]\ntest_rows = 20\n[finetuning]\nepochs = 1\nseeds = 2\n"
    (folder / "experiment.toml").write_text(f"{experiment}batch_size = 16\nmax_length = 32\n")
    return folder


@pytest.mark.slow
def test_from_reviews_to_a_table(script, settings: Path, tmp_path: Path):
    texts = [text for text, _ in reviews(2000)]
    (tmp_path / "reviews.txt").write_text("\n".join(texts) + "\n")
    write_tsv(tmp_path / "labelled.tsv", reviews(160, seed=1))
    arguments = ["--reviews", tmp_path / "reviews.txt", "--labelled", tmp_path / "labelled.tsv", "--settings", settings]
    script("nsmc/nsmc.py", *arguments, "--workdir", tmp_path / "w")
    cells = json.loads((tmp_path / "w" / "results.json").read_text())
    assert [cell["model"] for cell in cells] == ["bert", "electra", "control"] * 2
    sizes = sorted({cell["examples"] for cell in cells})
    assert len(sizes) == 2 and 35 <= sizes[0] <= 45 and sizes[1] <= 145
    assert all(0.0 <= cell["test_accuracy"] <= 1.0 and cell["deviation"] >= 0.0 for cell in cells)
    table = (tmp_path / "w" / "results.md").read_text()
    assert f"{cells[0]['test_accuracy']:.4f} ± {cells[0]['deviation']:.4f}" in table and "never pretrained" in table
    drawn = {name: (tmp_path / "w" / name).read_bytes() for name in ("accuracy.svg", "pretraining.svg")}
    test = {line.split("\t")[0] for line in (tmp_path / "w" / "labelled" / "test.tsv").read_text().splitlines()[1:]}
    for train in (tmp_path / "w" / "labelled").glob("train-*.tsv"):
        assert not test & {line.split("\t")[0] for line in train.read_text().splitlines()[1:]}
    flops = {
        name: json.loads((tmp_path / "w" / name / "run.json").read_text())["train"]["steps"] for name in ("bert", "electra")
    }
    assert flops["bert"] > flops["electra"] > 1  # the same operations: a step of two models costs more

    script("nsmc/nsmc.py", *arguments, "--workdir", tmp_path / "w")
    assert json.loads((tmp_path / "w" / "results.json").read_text()) == cells
    assert drawn == {name: (tmp_path / "w" / name).read_bytes() for name in drawn}


@pytest.mark.parametrize("file", sorted(EXPERIMENT.glob("*/*.toml")), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_the_settings_are_whole(file: Path):
    if file.stem == "experiment":
        import tomllib

        from tpulm.config import load_finetune

        values = tomllib.loads(file.read_text(encoding="utf-8"))
        assert values["sizes"][-1] == 0 and load_finetune(values["finetuning"]).seeds >= 3
    else:
        config = load(file)
        assert config.model.architecture == file.stem and config.train.objective.max_predictions is None
