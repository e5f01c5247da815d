"""Random small models of every family, made and saved by transformers: which load here, with torch's numbers, and which not."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from outputs import ours, rows, theirs

import tpulm
from tpulm.convert.huggingface import LoadedModel, load_model
from tpulm.convert.importing import import_model
from tpulm.errors import DataError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(55))]
SIZES = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "vocab_size": 60}
SIZES |= {"max_position_embeddings": 32, "initializer_range": 0.3, "pad_token_id": 0}


class Family(NamedTuple):
    """A model type of transformers, the beginning of its classes' names, and the classes that load."""

    prefix: str
    classes: tuple[str, ...]
    settings: Mapping[str, Any] = MappingProxyType({})


_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
LOADED = {
    "bert": Family("Bert", ("Model", "ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction", *_TASKS)),
    "megatron-bert": Family("MegatronBert", ("Model", "ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction", *_TASKS)),
    "electra": Family("Electra", ("Model", "ForMaskedLM", "ForPreTraining", *_TASKS), {"embedding_size": 16}),
    "modernbert": Family("ModernBert", ("Model", "ForMaskedLM", *_TASKS), {"local_attention": 8}),
    "eurobert": Family("EuroBert", ("Model", "ForMaskedLM", *_TASKS[:2]), {"classifier_pooling": "bos"}),
    "roberta": Family("Roberta", ("Model", "ForMaskedLM", *_TASKS)),
    "xlm-roberta": Family("XLMRoberta", ("Model", "ForMaskedLM", *_TASKS), {"type_vocab_size": 1}),
    "camembert": Family("Camembert", ("Model", "ForMaskedLM", *_TASKS), {"type_vocab_size": 1}),
    "distilbert": Family("DistilBert", ("Model", "ForMaskedLM", *_TASKS[1:3]), {"hidden_dim": 40, "activation": "relu"}),
    "gpt2": Family("GPT2", ("Model", "LMHeadModel")),
    "llama": Family("Llama", ("ForCausalLM",)),
}


def change_tensors(folder: Path, *left_out: str, **added: Any) -> None:
    """In the file of the folder."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors") | added
    kept = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    safetensors.numpy.save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def save(transformers: Any, torch: Any, folder: Path, model_type: str, class_name: str, **settings: Any) -> Any:
    """The model of transformers in the folder; parameters that begin as 0 or 1 are drawn too."""
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **settings})
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for _, leaf in model.named_parameters():
            if leaf.ndim == 1:
                leaf += 0.2 * torch.randn(leaf.shape)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return model


def answers(torch: Any, model: Any) -> np.ndarray:
    """Of a model of transformers."""
    ids, real, _ = rows().values()
    if type(model).__name__.endswith("MultipleChoice"):
        ids, real = ids[:, None], real[:, None]
    out = theirs(torch, model, input_ids=ids, attention_mask=real)
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], dim=-1).numpy()
    return out[next(key for key in ("prediction_logits", "logits", "last_hidden_state") if key in out)].numpy()


def assert_equal(torch: Any, model: LoadedModel, expected: Any) -> None:
    ids, real, _ = rows().values()
    found, wanted = ours(model, ids, real), answers(torch, expected)
    if found.shape[:2] == real.shape:
        found, wanted = found[real], wanted[real]
    assert np.abs(found).max() > 0.3  # or an error of 1e-5 would say little
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * max(1.0, float(np.abs(found).max())))


# The heads of a task have the code of their like: those of BERT, and those of RoBERTa.
LIKE_ANOTHER = ("megatron-bert", "xlm-roberta", "camembert")
LOADING = [
    (model_type, ending, {})
    for model_type, family in LOADED.items()
    for ending in family.classes
    if model_type not in LIKE_ANOTHER or ending not in _TASKS[1:]
]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Some heads have the model's activation, and others one of their own.
SILU = {"hidden_activation": "silu", "classifier_activation": "silu"}
LOADING += [("modernbert", ending, SILU) for ending in ("ForMaskedLM", *_TASKS)]
LOADING += [
    ("modernbert", "ForMaskedLM", {"rope_parameters": {"full_attention": {"rope_theta": 100.0, **scaling}}})
    for scaling in ({"rope_type": "linear", "factor": 3.0}, LLAMA3)
]
LOADING += [("electra", ending, {"hidden_act": "relu"}) for ending in ("ForMaskedLM", "ForPreTraining", _TASKS[0])]
LOADING += [("roberta", ending, {"hidden_act": "relu"}) for ending in ("Model", _TASKS[0])]
LOADING += [("eurobert", _TASKS[0], {"hidden_act": "relu"})]


@pytest.mark.parametrize(("model_type", "ending", "settings"), LOADING)
def test_numbers_are_those_of_transformers(torch, transformers, tmp_path, model_type, ending, settings):
    family = LOADED[model_type]
    expected = save(transformers, torch, tmp_path, model_type, family.prefix + ending, **family.settings, **settings)
    model = load_model(tmp_path)
    if ending == "ForNextSentencePrediction":
        assert {"cls.seq_relationship.weight", "bert.pooler.dense.weight"} < {*model.dropped}
        expected = expected.bert
    if (model_type, ending) == ("gpt2", "Model"):
        expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()  # whose output is tied
    assert_equal(torch, model, expected)


# -- what files are like ----------------------------------------------------------------------------------------------------


UNREAD = [("roberta", ending) for ending in _TASKS[:3]] + [("bert", ending) for ending in _TASKS[1:3]]


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(("model_type", "ending"), UNREAD)
def test_a_pooler_that_the_head_does_not_read_is_left_out(torch, transformers, tmp_path, model_type, ending, bare):
    """As in roberta-large-mnli, which holds the pooler of its pretraining."""
    model = save(transformers, torch, tmp_path, model_type, LOADED[model_type].prefix + ending)
    pooler = ("" if bare else f"{model.base_model_prefix}.") + "pooler.dense."
    shapes, random = {"weight": (24, 24), "bias": 24}, np.random.default_rng(1)
    change_tensors(tmp_path, **{f"{pooler}{name}": random.random(shape, np.float32) for name, shape in shapes.items()})
    expected = getattr(transformers, LOADED[model_type].prefix + ending).from_pretrained(tmp_path).eval()
    model = load_model(tmp_path)
    assert sorted(name.rpartition("pooler.")[2] for name in model.dropped) == ["dense.bias", "dense.weight"]
    assert_equal(torch, model, expected)


@pytest.mark.parametrize("model_type", ["bert", "electra", "modernbert", "eurobert", "roberta", "distilbert"])
def test_an_import_of_an_encoder_is_the_same_to_transformers(torch, transformers, tmp_path, model_type):
    family = LOADED[model_type]
    expected = save(transformers, torch, tmp_path / "theirs", model_type, f"{family.prefix}Model", **family.settings)
    if model_type == "bert":  # as all-MiniLM-L6-v2, with a buffer of older versions; older names are in test_huggingface.py
        change_tensors(tmp_path / "theirs", **{"embeddings.position_ids": np.arange(32)[None]})
    imported = import_model(tmp_path / "theirs", tmp_path / "ours")
    assert imported.head is None and "an encoder without a head" in imported.notes[0]
    assert model_type != "bert" or {*imported.dropped} == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert_equal(torch, load_model(tmp_path / "ours"), expected)
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    real = rows()["real"]  # padding has other positions in a RoBERTa
    np.testing.assert_allclose(answers(torch, again)[real], answers(torch, expected)[real], atol=1e-6)


def test_names_that_do_not_fit_are_refused(torch, transformers, tmp_path):
    """Two of one tensor; a part of a head is not taken for none."""
    save(transformers, torch, tmp_path, "bert", "BertForMaskedLM")
    gamma = "cls.predictions.transform.LayerNorm.gamma"
    for left_out, added, message in (
        ((), {gamma: np.ones(24, np.float32)}, r"transform\.LayerNorm\.(gamma|weight) and .* are two names of one tensor"),
        ((gamma, "cls.predictions.bias"), {}, r"missing: cls\.predictions\.bias"),
        ((), {"what": np.ones(3)}, r"unknown: what"),
    ):
        change_tensors(tmp_path, *left_out, **added)
        with pytest.raises(DataError, match=message):
            load_model(tmp_path)


GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("model_type", "class_name", "settings"),
    [
        ("llama", "LlamaForCausalLM", {"num_key_value_heads": 1}),
        ("llama", "LlamaForCausalLM", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
        ("llama", "LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}}),
        ("llama", "LlamaForCausalLM", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}}),
        ("llama", "LlamaForCausalLM", {"rope_scaling": LLAMA3, "rope_theta": 500.0}),  # of 32 positions
        ("eurobert", "EuroBertForMaskedLM", {**GROUPED, "rope_parameters": LLAMA3 | {"rope_theta": 100.0}}),
    ],
)
def test_grouped_queries_and_scaled_positions(torch, transformers, tmp_path, model_type, class_name, settings):
    """In several files, too, and after an import, which copies the keys and values that queries share."""
    expected = save(transformers, torch, tmp_path / "theirs", model_type, class_name, **settings)
    assert_equal(torch, load_model(tmp_path / "theirs"), expected)
    (tmp_path / "theirs" / "model.safetensors").unlink()
    expected.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len([*(tmp_path / "theirs").glob("model-*.safetensors")]) > 1
    imported = import_model(tmp_path / "theirs", tmp_path / "ours")
    assert any("grouped-query" in note for note in imported.notes) is ("num_key_value_heads" in settings)
    again = getattr(transformers, class_name).from_pretrained(tmp_path / "ours").eval()
    assert again.config.num_key_value_heads == again.config.num_attention_heads
    np.testing.assert_allclose(answers(torch, again), answers(torch, expected), atol=1e-5)


# -- ModernBERT's and EuroBERT's pooling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "class_name", ["ModernBertForSequenceClassification", "ModernBertForMultipleChoice", "EuroBertForSequenceClassification"]
)
def test_mean_pooling_is_that_of_transformers(torch, transformers, tmp_path, class_name):
    settings = {"classifier_pooling": "mean", "num_labels": 3, "local_attention": 8}
    expected = save(transformers, torch, tmp_path / "theirs", class_name.partition("For")[0].lower(), class_name, **settings)
    assert_equal(torch, load_model(tmp_path / "theirs"), expected)
    import_model(tmp_path / "theirs", tmp_path / "ours")
    kept = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert kept["classifier_pooling"] == "mean"
    again = getattr(transformers, class_name).from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_allclose(answers(torch, again), answers(torch, expected), atol=1e-6)


@pytest.mark.parametrize("begin", ["ModernBertForSequenceClassification", "ModernBertModel"])
def test_a_classifier_trained_with_mean_pooling(torch, transformers, tmp_path, begin):
    """It keeps the pooling of the one it began with, or has that of `pooling`."""
    save(transformers, torch, tmp_path / "begin", "modernbert", begin, classifier_pooling="mean")
    settings: dict[str, Any] = {"pooling": "mean"} if begin.endswith("Model") else {}
    trained = tpulm.Classifier(tmp_path / "begin", labels=["a", "b"], max_length=16, **settings)
    trained.params = trained.first_params(0)
    trained.save_pretrained(tmp_path / "out")
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert stock.config.classifier_pooling == "mean"
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(["w3 w4", "w5"], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = stock(**tokens).logits.softmax(-1).numpy()
    np.testing.assert_allclose(trained.predict_proba(["w3 w4", "w5"]), expected, atol=1e-5)
    found = tpulm.classify(tmp_path / "out", ["w3 w4", "w5"])
    np.testing.assert_allclose([[*(one.probabilities or {}).values()] for one in found], expected, atol=1e-5)


# -- the table of docs/importing.md -----------------------------------------------------------------------------------------

# Model types that are not supported, with a class of each.
REFUSED = {"albert": "AlbertModel", "deberta-v2": "DebertaV2Model", "mpnet": "MPNetModel", "t5": "T5EncoderModel"}
REFUSED |= {"gemma": "GemmaForCausalLM", "gpt_neox": "GPTNeoXForCausalLM", "mistral": "MistralForCausalLM"}
REFUSED |= {"qwen2": "Qwen2ForCausalLM"}


def test_other_families_are_refused_by_name(tmp_path):
    """The name alone decides, before weights and tokenizer are looked at."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    safetensors.numpy.save_file({"weight": np.ones(3)}, tmp_path / "in" / "model.safetensors")
    for model_type, class_name in REFUSED.items():
        (tmp_path / "in" / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [class_name]}))
        for use in (load_model, lambda folder: import_model(folder, tmp_path / "out")):
            with pytest.raises(DataError, match=f"'{model_type}' .*'bert', "):
                use(tmp_path / "in")


class Refusal(NamedTuple):
    """A class of a supported type, with settings, that does not load: why, and what the error says."""

    class_name: str
    settings: Mapping[str, Any]
    why: str
    message: str


LATE, YARN = {"classifier_pooling": "late"}, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}
RELU = {"hidden_act": "relu"}
NOT = {
    "bert": [Refusal("BertLMHeadModel", {"is_decoder": True}, "with `is_decoder`", "is_decoder is True")],
    "distilbert": [Refusal(f"DistilBert{head}", {}, "its head has a ReLU", "pre_classifier") for head in _TASKS[::3]],
    **{
        name: [Refusal(f"{LOADED[name].prefix}ForMaskedLM", RELU, "with another `hidden_act` than GELU", "hidden_act")]
        for name in ("roberta", "xlm-roberta", "camembert")
    },
    "eurobert": [Refusal("EuroBertForSequenceClassification", LATE, 'with `classifier_pooling` "late"', "'late'")],
    "gpt2": [
        Refusal(
            "GPT2ForSequenceClassification",
            {},
            "a causal classifier, unless `tpulm finetune` made it",
            "both before and after a text",
        )
    ],
    "llama": [
        Refusal("LlamaModel", {}, "its output is not there", r"missing: lm_head\.weight"),
        Refusal(
            "LlamaForSequenceClassification",
            {},
            "a causal classifier, unless `tpulm finetune` made it",
            "both before and after a text",
        ),
        Refusal("LlamaForTokenClassification", {}, "another head", "LlamaForTokenClassification is not supported"),
        Refusal("LlamaForCausalLM", {"head_dim": 16}, "with a `head_dim` of its own", "head_dim is 16"),
        Refusal("LlamaForCausalLM", YARN, "with RoPE scaled by `yarn` or `dynamic`", "'yarn'.* linear, llama3"),
    ],
}


@pytest.mark.parametrize(("model_type", "refusal"), [(name, one) for name, some in NOT.items() for one in some])
def test_what_does_not_load_is_refused_with_the_reason(torch, transformers, tmp_path, model_type, refusal):
    save(transformers, torch, tmp_path, model_type, refusal.class_name, **refusal.settings)
    with pytest.raises(DataError, match=refusal.message):
        load_model(tmp_path)


_WITHOUT = {"ForNextSentencePrediction": " (its head is left out)"}


def table() -> str:
    lines = ["| `model_type` | classes of transformers that load | not, and why |", "|---|---|---|"]
    for model_type, family in LOADED.items():
        loaded = ", ".join(f"`{ending}`{_WITHOUT.get(ending, '')}" for ending in family.classes)
        refused = "; ".join(f"`{one.class_name.removeprefix(family.prefix)}`: {one.why}" for one in NOT.get(model_type, []))
        lines.append(f"| `{model_type}` | `{family.prefix}` + {loaded} | {refused} |")
    lines.append(f"| {', '.join(f'`{model_type}`' for model_type in REFUSED)} and others | none | another architecture |")
    return "\n".join(lines)


def test_the_table_in_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "importing.md"
    begin, end = "<!-- made by tests/convert/test_families.py -->\n\n", "\n\n## "
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    found, _, after = rest.partition(end)
    if os.environ.get("TPULM_UPDATE_GOLDEN"):
        found = table()
        page.write_text(before + begin + found + end + after, encoding="utf-8")
    assert found == table(), "if this is wanted: TPULM_UPDATE_GOLDEN=1 pytest tests/convert/test_families.py"
