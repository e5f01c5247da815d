"""What a launch copies of this machine's files, so that VMs read the same vocabulary and the same starting model."""

from __future__ import annotations

import json
from pathlib import Path

from cloud_rig import WORKDIR_PATH

from cloud_emulator import Emulator
from tpulm import storage, tokenization
from tpulm.cloud import launch
from tpulm.config import RunConfig, load as load_run
from tpulm.tokenization import files, hf_files

INPUTS = WORKDIR_PATH / "cloud" / "inputs"


def test_a_vocabulary_goes_with_the_files_beside_it(gcs: Emulator, tmp_path: Path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": 7}))
    (tmp_path / "mine.json").write_text("{}")
    run = load_run("bert-tiny", {"tokenizer.path": str(tmp_path / "vocab.txt")})

    def ids_of(config: RunConfig) -> list[int]:
        return list(tokenization.load(config.tokenizer.path or "", config.tokenizer).encode_one("the [E1] cat"))

    assert ids_of(launch.staged(run, INPUTS)) == ids_of(run) == [2, 5, 7, 6, 3]
    (tmp_path / "added_tokens.json").unlink()
    assert ids_of(launch.staged(run, INPUTS)) == ids_of(run)
    assert storage.walk(INPUTS).keys() == {"tokenizer/vocab.txt"}
    (tmp_path / "vocab.txt").unlink()
    launch.staged(run, INPUTS)
    assert storage.walk(INPUTS).keys() == {"tokenizer/vocab.txt"}, "what another machine has staged stays"


def test_all_files_beside_a_vocabulary_that_are_read():
    assert {*launch._BESIDE_TOKENIZERS} == {*hf_files.SETTINGS_FILES, hf_files.ADDED_TOKENS, files.MODEL_CONFIG, files.MANIFEST}


def test_of_a_starting_model_only_what_is_read_is_copied_and_once(gcs: Emulator, tmp_path: Path):
    model = {"export/generator/config.json", "export/discriminator/model.safetensors", "export/config.json", "run.json"}
    model |= {"results/export.json", "optimizer.safetensors"}
    for name in (*model, "checkpoints/7/a.json", "dataset/manifest.json", ".lock", "secrets.json", "export/generator/x/y.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    run = load_run("bert-tiny", {"train.start_from": str(tmp_path)})
    assert launch.staged(run, INPUTS).train.start_from == str(INPUTS / "start")
    first = storage.walk(INPUTS / "start")
    assert first.keys() == model
    (tmp_path / "run.json").write_text("other")
    launch.staged(run, INPUTS)
    assert {name for name, file in storage.walk(INPUTS / "start").items() if file != first[name]} == {"run.json"}
    (tmp_path / "run.json").unlink()
    launch.staged(run, INPUTS)
    assert storage.walk(INPUTS / "start").keys() == {"secrets.json", "optimizer.safetensors", "results/export.json"}
