"""Going on from a model: its settings, the leaf each moment lands in, what the first update then is, another vocabulary."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from outputs import assert_same_leaves
from test_stock_classes import GPT2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

import bundles
from bundles import BERT_CONFIG as SETTINGS
from toy_runs import Notes
from tpulm import config, pipeline, storage, tokenization
from tpulm.config import OptimizerConfig, RunConfig
from tpulm.convert import continuing
from tpulm.convert.config_json import HeadConfig
from tpulm.convert.continuing import initial_weights, new_vocabulary, starting_moments, starting_point
from tpulm.convert.heads import spec_of
from tpulm.convert.huggingface import load_model
from tpulm.convert.importing import import_model
from tpulm.convert.tensorbundle import Bundle
from tpulm.errors import ConfigError, DataError
from tpulm.models import bert, electra
from tpulm.models.classifier import without_head
from tpulm.nn.params import map_specs, named_leaves
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Tokenization
from tpulm.tokenization.pipelines import BYTE_CHARACTERS
from tpulm.tokenization.special import TOKENS
from tpulm.train.optimizer import make_optimizer, with_moments
from tpulm.train.program import PretrainingProgram

GOLDEN = Path(__file__).parent / "golden" / "continued.json"
ELECTRAS = {**bundles.ELECTRAS, "own embeddings": {"size": 128, "small": 64, "embedding": 64, "own_embeddings": True}}
Imported = Callable[..., Path]


def tensors_of(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Random ones, with moments as an optimizer has them: the second ones are not negative."""
    drawn = bundles.drawn(shapes)
    return {name: np.abs(array) if name.endswith("adam_v") else array for name, array in drawn.items()}


@pytest.fixture
def imported(checkpoint: Imported, tmp_path: Path) -> Imported:
    """A function (tensors, bert_config or None) -> the folder of an import, with the checkpoint beside it."""

    def made(tensors: dict[str, np.ndarray], settings: Any = None, tokens: int = 60) -> Path:
        import_model(checkpoint(tensors, settings, tokens), tmp_path / "model")
        return tmp_path / "model"

    return made


@pytest.fixture
def bert_folder(imported: Imported) -> Path:
    return imported(tensors_of(bundles.bert()), SETTINGS)


def vocabulary_of(folder: Path, name: str, *tokens: str, special: Iterable[str] = TOKENS) -> Tokenization:
    path = folder / name
    path.write_text("\n".join([*special, *tokens]) + "\n", encoding="utf-8")
    return tokenization.load(path)


def run_of(folder: Path, recipe: str = "bert-tiny", *overrides: str) -> RunConfig:
    settings = ["data.sequence_length=16", "train.batch_size=8", "train.steps=10", *overrides]
    return config.load(recipe, settings, start=starting_point(folder))


def program_of(settings: RunConfig, folder: Path) -> PretrainingProgram:
    assert settings.tokenizer.path is not None
    tokenizer = tokenization.load(settings.tokenizer.path)
    program = PretrainingProgram(settings, vocab_size=60, special=SpecialTokens(*tokenizer.special))
    with_moments = settings.train.start_optimizer
    begin = initial_weights(folder, settings.model, program.objective.spec, tokenizer, with_moments=with_moments)
    program.start_from(begin.params, begin.moments)
    return program


def begun_at(folder: Path, settings: RunConfig, *, next_sentence: bool = True) -> Any:
    """The weights and moments of the folder for the model of the run."""
    assert settings.tokenizer.path is not None
    model, tokenizer = settings.model, tokenization.load(settings.tokenizer.path)
    if model.architecture == "electra":
        spec: Any = electra.spec(model, vocab_size=tokenizer.vocab_size)
    else:
        spec = bert.spec(model, vocab_size=tokenizer.vocab_size, next_sentence=next_sentence)
    return initial_weights(folder, model, spec, tokenizer, with_moments=True)


# -- the settings -----------------------------------------------------------------------------------------------------------


def test_the_settings_of_a_continued_run(bert_folder: Path):
    """After a wanted change: TPULM_UPDATE_GOLDEN=1 pytest tests/convert/test_continuing.py"""
    found = config.canonical_json(run_of(bert_folder)).replace(str(bert_folder), "DIR")
    if os.environ.get("TPULM_UPDATE_GOLDEN"):
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(ELECTRAS))
def test_what_kind_of_electra_it_is_and_what_its_halves_share(imported: Imported, name: str):
    sizes = ELECTRAS[name]
    folder = imported(tensors_of(bundles.electra(**sizes)))
    point = starting_point(folder)
    assert point.moments and not point.next_sentence
    own = {"own_embeddings": sizes.get("own_embeddings", False), "own_layers": sizes.get("own_layers", True)}
    assert point.model["generator"] == own | {"width": sizes["small"] / 128, "depth": 1.0, "disentangled_embeddings": False}
    assert starting_point(folder / "generator").model == point.model
    begin = begun_at(folder, run_of(folder, "electra-small"))
    assert_same_leaves(begin.moments.first, leaves_on_file(folder, "adam_m"))
    assert_same_leaves(begin.moments.second, leaves_on_file(folder, "adam_v"))
    whole = electra.halves(begin.params)
    for half in ("generator", "discriminator"):
        assert_same_leaves(getattr(whole, half), load_model(folder / half).params)


def test_half_an_electra_or_a_strange_generator_is_refused(imported: Imported, tmp_path: Path):
    folder = imported(tensors_of(bundles.electra(**ELECTRAS["projected"] | {"own_embeddings": True})))
    with pytest.raises(ConfigError, match=r"embedding_size 64 .*32"):
        starting_point(folder)
    (folder / "discriminator").rename(tmp_path / "discriminator")
    with pytest.raises(ConfigError, match="generator and discriminator"):
        starting_point(folder)


def test_why_a_causal_model_is_not_trained_further(tmp_path: Path):
    tokenization.save(vocabulary_of(tmp_path, "vocab.txt", "the").causal(), tmp_path / "framed")
    lacking = Tokenizer(models.WordLevel({"[UNK]": 0, "<pad>": 1, "</s>": 2}, unk_token="[UNK]"))
    (tmp_path / "lacking").mkdir()
    lacking.save(str(tmp_path / "lacking" / "tokenizer.json"))
    cases = (("framed", 1, "begins and ends texts in another"), ("lacking", 2, r"lacks special tokens \(\[CLS\] \[MASK\]\)"))
    for name, end, why in cases:
        (tmp_path / name / "config.json").write_text(json.dumps({"eos_token_id": end}))
        (tmp_path / name / "model.safetensors").touch()
        with pytest.raises(ConfigError, match=f"cannot be trained further: its tokenizer {why}") as refused:
            continuing.check_trainable(tmp_path / name, tokenization.load_causal(tmp_path / name))
        assert " or " not in str(refused.value).split(".")[0]


def test_gpt2_s_special_tokens_are_refused(real_data: Path):
    with pytest.raises(ConfigError, match="special tokens"):
        starting_point(real_data / "fixtures" / "gpt2_hf")


def test_a_folder_with_a_bare_vocabulary_brings_its_rules(bert_folder: Path):
    (bert_folder / "tokenizer.json").unlink()
    (bert_folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenize_chinese_chars": False}))
    found = run_of(bert_folder).tokenizer
    assert found.path == str(bert_folder / "vocab.txt")
    assert (found.lowercase, found.strip_accents, found.split_cjk) == (True, True, False)


# -- the weights and the moments --------------------------------------------------------------------------------------------


def leaves_on_file(folder: Path, role: str) -> dict[str, np.ndarray]:
    stored = safetensors.numpy.load_file(folder / "optimizer.safetensors")
    return {name.removeprefix(f"{role}/"): array for name, array in stored.items() if name.startswith(f"{role}/")}


def test_each_moment_lands_in_its_leaf(bert_folder: Path):
    """Bit for bit, over two devices, from the checkpoint of Google's into the optimizer's state."""
    settings = run_of(bert_folder, "bert-tiny", "hardware.fsdp=2", "model.dropout=0.0")
    state = jax.device_get(program_of(settings, bert_folder).initial_state())
    weights = named_leaves(load_model(bert_folder).params)
    moments = next(part for part in state.optimizer if hasattr(part, "mu"))
    for tree, expected in (
        (state.params, weights),
        (moments.mu, leaves_on_file(bert_folder, "adam_m")),
        (moments.nu, leaves_on_file(bert_folder, "adam_v")),
    ):
        assert_same_leaves(tree, expected)
    bundle = Bundle(bert_folder.parent / "source" / "model.ckpt")
    theirs = bundle["bert/embeddings/word_embeddings/adam_v"].read()
    np.testing.assert_array_equal(moments.nu.embeddings.tokens[:60], theirs)
    assert not moments.nu.embeddings.tokens[60:].any() and not moments.mu.masked_head.output_bias[60:].any(), "padding"
    assert int(state.step) == 0 and int(state.optimizer[-1].count) == 0, "schedules begin anew"


def test_the_first_update_is_that_of_google_s_optimizer(bert_folder: Path):
    """AdamWeightDecayOptimizer.apply_gradients of google-research/bert, optimization.py, written out in numpy."""
    model = load_model(bert_folder)
    spec = bert.spec(model.config, vocab_size=60, next_sentence=True)
    settings = OptimizerConfig(learning_rate=0.01, schedule="constant", warmup_steps=0, clip_norm=None, bias_correction=False)
    optimizer = make_optimizer(settings, 10, spec)
    random = np.random.default_rng(0)
    grads = map_specs(lambda leaf: random.normal(0.0, 0.1, leaf.shape).astype(np.float32), spec)
    params: Any = model.params
    state = with_moments(optimizer.init(params), starting_moments(bert_folder, spec))
    updates, _ = optimizer.update(grads, state, params)
    m, v = leaves_on_file(bert_folder, "adam_m"), leaves_on_file(bert_folder, "adam_v")
    for name, gradient in named_leaves(grads).items():
        param = named_leaves(model.params)[name].astype(np.float64)
        next_m = 0.9 * m[name].astype(np.float64) + (1.0 - 0.9) * gradient
        next_v = 0.999 * v[name].astype(np.float64) + (1.0 - 0.999) * np.square(gradient.astype(np.float64))
        update = next_m / (np.sqrt(next_v) + 1e-6)
        if not name.endswith(("bias", "scale")):  # exclude_from_weight_decay: LayerNorm, layer_norm, bias
            update += 0.01 * param
        np.testing.assert_allclose(named_leaves(updates)[name], -0.01 * update, rtol=1e-4, atol=1e-7, err_msg=name)


def test_a_bias_correction_counts_from_the_step_of_the_moments(bert_folder: Path):
    settings = run_of(bert_folder, "bert-tiny", "train.optimizer.bias_correction=true")
    state = program_of(settings, bert_folder).initial_state()
    adam = next(part for part in state.optimizer if hasattr(part, "mu"))
    assert (int(adam.count), int(state.optimizer[-1].count)) == (1234, 0)
    report = json.loads((bert_folder / "import.json").read_text())
    (bert_folder / "import.json").write_text(json.dumps(report | {"step": None}))
    with pytest.raises(ConfigError, match="bias_correction"):
        program_of(settings, bert_folder)
    program_of(run_of(bert_folder), bert_folder)  # nothing counts without it


def test_a_head_that_is_not_trained_is_left_out(bert_folder: Path):
    settings = run_of(bert_folder, "bert-tiny", "data.next_sentence=false")
    begin = begun_at(bert_folder, settings, next_sentence=False)
    assert "step 1,234" in begin.summary and "next-sentence head is left out, as data.next_sentence is false" in begin.summary
    expected = named_leaves(bert.spec(settings.model, vocab_size=60, next_sentence=False)).keys()
    assert named_leaves(begin.params).keys() == expected == named_leaves(begin.moments.first).keys()


def test_a_head_that_is_missing_is_an_error(imported: Imported):
    shapes = {name: shape for name, shape in bundles.bert().items() if "seq_relationship" not in name and "pooler" not in name}
    folder = imported(tensors_of(shapes), SETTINGS)
    with pytest.raises(ConfigError, match=r"data\.next_sentence=false"):
        run_of(folder)
    spec = bert.spec(load_model(folder).config, vocab_size=60, next_sentence=True)
    with pytest.raises(ConfigError, match=r"data\.next_sentence=false"):
        initial_weights(folder, load_model(folder).config, spec, tokenization.load(folder), with_moments=False)


def test_moments_that_are_damaged_or_of_another_model_are_refused(bert_folder: Path):
    spec = bert.spec(load_model(bert_folder).config, vocab_size=60, next_sentence=True)
    file = bert_folder / "optimizer.safetensors"
    whole = file.read_bytes()

    def refused(error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            starting_moments(bert_folder, spec)

    file.write_bytes(whole[:-10])
    refused(DataError, r"not a whole safetensors file .*import the model again")
    arrays = safetensors.numpy.load(whole)
    for name, change, error, message in (
        ("adam_v/embeddings/types", lambda a: -a - 1, DataError, "negative numbers in adam_v/embeddings/types"),
        ("adam_m/embeddings/types", lambda a: a * np.float32(np.nan), DataError, "NaN.* in adam_m/embeddings/types"),
        ("adam_m/embeddings/types", lambda a: a[:1], ConfigError, r"embeddings/types is \[1, 24\] there and \[2, 24\] here"),
    ):
        file.write_bytes(safetensors.numpy.save({**arrays, name: change(arrays[name])}))
        refused(error, message)
    del arrays["adam_m/embeddings/types"]
    file.write_bytes(safetensors.numpy.save(arrays))
    refused(ConfigError, "embeddings/types is missing there")
    file.unlink()
    refused(ConfigError, r"has no optimizer.safetensors; set it to false for a fresh optimizer")


def test_moments_of_another_vocabulary_are_refused(bert_folder: Path, tmp_path: Path):
    """The same tokens in another order; a copy of the file has the same vocabulary."""
    settings, tokens = run_of(bert_folder), (bert_folder / "vocab.txt").read_text().splitlines()[5:]
    spec = bert.spec(settings.model, vocab_size=60, next_sentence=True)
    same, turned = (vocabulary_of(tmp_path, "other.txt", *some) for some in (tokens, reversed(tokens)))

    def begun(tokenizer: Tokenization, *, with_moments: bool) -> Any:
        given = (bert_folder, settings.model, spec, tokenizer)
        return initial_weights(*given, with_moments=with_moments, other_vocabulary=True).moments

    with pytest.raises(ConfigError, match=r"start_optimizer is true, but the moments of .* are of another vocabulary"):
        begun(turned, with_moments=True)
    assert begun(turned, with_moments=False) is None
    assert begun(same, with_moments=True) is not None


def test_a_vocabulary_that_was_rounded_up_further_is_cut(imported: Imported):
    """120 tokens of a model with 140: 256 rows there, 128 here."""
    folder = imported(tensors_of(bundles.bert(vocab=140)), SETTINGS | {"vocab_size": 140}, 120)
    begin = begun_at(folder, run_of(folder))
    theirs = Bundle(folder.parent / "source" / "model.ckpt")["bert/embeddings/word_embeddings"].read()
    np.testing.assert_array_equal(begin.params.embeddings.tokens, theirs[:128])


@pytest.mark.parametrize(("recipe", "settings"), [("bert-tiny", {}), ("lm1b", GPT2)])
def test_of_an_export_the_weights_alone(tmp_path: Path, make_small: Any, recipe: str, settings: dict[str, Any]):
    """Of a causal model of ours, too."""
    small = make_small(**settings)
    folder = small.save(tmp_path / "export")
    point = starting_point(folder)
    assert (point.moments, point.next_sentence) == (False, False)
    found = run_of(folder, recipe, "data.next_sentence=false", "train.optimizer.warmup_steps=1")
    assert found.model == small.config and found.tokenizer.path == str(folder / "tokenizer.json")
    spec = spec_of(small.config, "causal" if settings else "masked", vocab_size=60)
    begin = initial_weights(folder, small.config, spec, tokenization.load(folder / "tokenizer.json"), with_moments=False)
    assert begin.moments is None and begin.summary.endswith("export: weights and a fresh optimizer")


def test_a_model_in_cloud_storage(gcs: object, bert_folder: Path, tmp_path: Path):
    for file in (bert_folder.parent / "source").iterdir():
        storage.write_atomic(f"gs://runs/bert/{file.name}", file.read_bytes())
    import_model("gs://runs/bert", "gs://runs/model")
    settings = run_of(bert_folder)
    found = config.load("bert-tiny", ["data.sequence_length=16"], start=starting_point("gs://runs/model"))
    assert (found.train.start_from, found.tokenizer.path) == ("gs://runs/model", "gs://runs/model/tokenizer.json")
    assert found.model == settings.model and found.train.start_optimizer
    spec = bert.spec(found.model, vocab_size=60, next_sentence=True)
    here, there = (starting_moments(folder, spec) for folder in (bert_folder, "gs://runs/model"))
    assert_same_leaves(there.second, here.second)
    import_model("gs://runs/model", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (bert_folder / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="gs://runs/model"):
        import_model(bert_folder, "gs://runs/model")


# -- from a model without the head --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["embedding", "classification"])
def test_a_bare_encoder_or_a_classifier_gets_a_new_masked_head(tmp_path: Path, make_small: Any, head: Any):
    small = make_small()
    spec = spec_of(small.config, head, vocab_size=60, num_outputs=2)
    params = map_specs(lambda leaf: np.full(leaf.shape, 0.5, np.float32), spec)
    head_config = HeadConfig(("a", "b")) if head == "classification" else None
    folder = small._replace(params=params).save(tmp_path / "in", head_config=head_config)
    wanted = bert.spec(run_of(folder, "bert-tiny", "data.next_sentence=false").model, vocab_size=60, next_sentence=False)
    begun = initial_weights(folder, small.config, wanted, small.tokenizer, with_moments=False)
    assert begun.summary.endswith("masked_head begins at random, as the model has none")
    found = named_leaves(begun.params)
    assert found.keys() == named_leaves(wanted).keys()
    of_head = found["masked_head/dense/kernel"]
    assert np.std(of_head) == pytest.approx(small.config.initializer_range, rel=0.2)
    assert np.all(found["masked_head/norm/scale"] == 1.0) and np.all(found["masked_head/output_bias"] == 0.0)
    kept = {name: leaf for name, leaf in found.items() if not name.startswith("masked_head/")}
    assert_same_leaves(kept, without_head(load_model(folder).params))


def test_both_halves_of_an_electra_without_heads(tmp_path: Path, make_small: Any):
    small = make_small(architecture="electra", activation="gelu", embedding_size=12, num_heads=1)
    for half, config_of in (("generator", electra.generator_config(small.config)), ("discriminator", small.config)):
        params = map_specs(lambda leaf: np.full(leaf.shape, 0.5, np.float32), spec_of(config_of, "embedding", vocab_size=60))
        small._replace(params=params, config=config_of).save(tmp_path / "in" / half)
    found = run_of(tmp_path / "in", "electra-small").model
    begun = initial_weights(tmp_path / "in", found, electra.spec(found, vocab_size=60), small.tokenizer, with_moments=False)
    assert "discriminator/detection_head, generator/masked_head begins at random" in begun.summary


# -- another vocabulary -----------------------------------------------------------------------------------------------------


def test_tokens_begin_with_what_they_are_in_the_old_vocabulary(tmp_path: Path) -> None:
    old = vocabulary_of(tmp_path, "old.txt", "film", "##s", "a", "##b", "b", "##film")  # 5 to 10
    roles = ["[UNK]", "[PAD]", "[SEP]", "[CLS]", "[MASK]"]  # in other places than there
    new = vocabulary_of(tmp_path, "new.txt", "##s", "films", "##filmb", "漢", "film", special=roles)
    found = new_vocabulary(old, new)
    assert found.sources == [(1,), (0,), (3,), (2,), (4,), (6,), (5, 6), (10, 8), (), (5,)]
    assert (found.kept, found.composed) == (7, 2)
    assert re.findall(r"\d+", str(found)) == ["7", "10", "2", "1"]
    weights = np.arange(32, dtype=np.float32).reshape(16, 2)  # its rows 11 to 15 stand for no token
    rows = found.rows(weights, 12)
    np.testing.assert_array_equal(rows[5], weights[6])
    np.testing.assert_array_equal(rows[6], (weights[5] + weights[6]) / 2)
    np.testing.assert_array_equal(rows[8], weights[5:11].mean(axis=0))
    assert not rows[10:].any() and rows.shape == (12, 2)
    biases = found.rows(weights[:, 0], 12)
    assert biases.shape == (12,) and biases[0] == weights[1, 0]


def bpe(prefix_space: bool) -> Tokenizer:
    merges = [("w", "a"), ("l", "k"), ("wa", "lk"), ("Ġ", "walk"), ("i", "n"), ("in", "g"), ("Ġ", "w")]
    tokens = [*TOKENS, *BYTE_CHARACTERS, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    made.decoder = decoders.ByteLevel()
    return made


def unigram() -> Tokenizer:
    pieces = ["▁", "wal", "king", "▁w", "▁walk", "ing", *"walking,漢"]
    scores = [(token, -5.0 if len(token) == 1 and token != "▁" else -2.0) for token in pieces]
    made = Tokenizer(models.Unigram([*((token, 0.0) for token in TOKENS), *scores], unk_id=1))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    made.decoder = decoders.Metaspace()
    return made


def wordpiece() -> Tokenizer:
    pieces = ["w", "walk", "walking", "##wa", "##ing", "##walk", "##alk", "##lking", ",", "漢"]
    made = Tokenizer(models.WordPiece({token: number for number, token in enumerate([*TOKENS, *pieces])}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made


@pytest.mark.parametrize(
    "theirs", [bpe(False), bpe(True), unigram(), wordpiece()], ids=["bytes", "bytes after a space", "unigram", "wordpiece"]
)
def test_the_pieces_of_a_new_token_are_those_of_its_context(tmp_path: Path, theirs: Tokenizer) -> None:
    """As the old tokenizer's library reads it in a text: after a space, within a word, and a mark or an ideogram alone."""
    theirs.add_special_tokens([*TOKENS])
    theirs.save(str(tmp_path / "tokenizer.json"))
    contexts = {"walking": "w walking", "##walking": "wwalking", "wing": "w wing", "##lking": "wlking", ",": "w,", "漢": "w漢"}
    new = vocabulary_of(tmp_path, "new.txt", "w", *contexts)
    found = new_vocabulary(tokenization.load(tmp_path / "tokenizer.json"), new)
    for token, text in contexts.items():
        head, *pieces = theirs.encode(text).ids
        assert [head] == theirs.encode("w").ids and 1 not in pieces
        assert found.sources[new.vocabulary()[token]] == tuple(pieces), token


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--init"):
        new_vocabulary(vocabulary_of(tmp_path, "old.txt", "a"), vocabulary_of(tmp_path, "new.txt", "b"))


@pytest.mark.slow
def test_a_run_goes_on_with_another_vocabulary(toy_run: tuple[RunConfig, Path, Any], tmp_path: Path) -> None:
    """In two steps its embeddings hardly move from those of the model, each of which has another place there."""
    source, old = toy_run[0].corpus.sources[0].path, load_model(toy_run[1])
    words = [token for token in old.tokenization.vocabulary() if token not in TOKENS]
    new = vocabulary_of(tmp_path, "new.txt", *reversed(words), "catdog")
    (tmp_path / "run.toml").write_text(
        f'[corpus]\nsources = ["{source}"]\nholdout_fraction = 0.1\n[data]\nsequence_length = 32\nrows = "packed"\n'
    )
    settings = [f"tokenizer.path={tmp_path / 'new.txt'}", "train.steps=2", "train.batch_size=8", "train.log_every_steps=1"]
    progress, run = Notes(), config.load(tmp_path / "run.toml", settings, start=starting_point(toy_run[1]))
    pipeline.run(run, tmp_path / "w", progress=progress)
    assert any("another vocabulary: " in note for note in progress.notes)
    before, after = (named_leaves(load_model(folder).params)["embeddings/tokens"] for folder in (toy_run[1], tmp_path / "w"))
    there = [old.tokenization.vocabulary()[word] for word in words]
    np.testing.assert_allclose(after[[new.vocabulary()[word] for word in words]], before[there], atol=1e-3, rtol=0)
    assert np.abs(after[there] - before[there]).max() > 0.02
