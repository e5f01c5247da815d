"""The model card says what the facts say, and nothing where they are silent."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import yaml

from tpulm.config import DataConfig, ModelConfig, PhaseConfig, RunConfig, TokenizerConfig, TrainConfig, load
from tpulm.convert.model_card import CardFacts, name_of, render, settings
from tpulm.dataset.manifest import Counts, DatasetManifest, RowFormat, SplitManifest
from tpulm.special_tokens import SpecialTokens

CONFIG = RunConfig(
    name="korean-reviews",
    description="Learned from reviews of films.",
    language="ko",
    data=DataConfig(sequence_length=64),
    model=ModelConfig(num_layers=4, hidden_size=256, num_heads=4, intermediate_size=1024),
    train=TrainConfig(steps=600, batch_size=64),
)
CORPUS = {
    "documents": 712_371,
    "skipped": {"too_short": 12, "too_long": 0},
    "characters": 24_500_000,
    "languages": {"en": 1_000, "ko": 700_000, "uncertain": 10_000, "ja": 500, "zh": 400, "fr": 300, "de": 183},
}
BARE = CardFacts(
    config=CONFIG.model_copy(update={"description": "", "language": None}), vocab_size=16_000, mask_token="[MASK]", steps=600
)


def manifest(corpus: dict[str, Any], **counts: Any) -> DatasetManifest:
    format_of_rows = {"kind": "packed", "sequence_length": 64, "dtype": "uint16", "block_rows": 8, "columns": ("tokens",)}
    rows = RowFormat(**format_of_rows, vocab_size=16_000, special=SpecialTokens(0, 1, 2, 3, 4))
    both = {"inputs": {}, "rows": rows, "padding_fraction": 0.0312, "tokens_per_character": 0.4585, "parts": ()}
    train = SplitManifest(split="train", counts=Counts(**counts), **both)
    holdout = SplitManifest(split="holdout", counts=Counts(documents=7_370, rows=1_820), **both)
    return DatasetManifest(inputs={}, fingerprint="", corpus=corpus, train=train, holdout=holdout)


COUNTS: dict[str, Any] = {"documents": 698_000, "duplicates": 7_001, "characters": 24_000_000, "rows": 181_234}
COUNTS |= {"tokens": 11_234_567, "token_lengths": {6: 100_000, 12: 300_000, 40: 250_000, 1_200: 48_000}}
SCORES = {"step": 600, "loss": 6.54321, "accuracy": 0.12345, "baseline_accuracy": 0.04, "bits_per_character": 4.3281}
FULL = replace(
    BARE,
    config=CONFIG,
    datasets=(manifest(CORPUS, **COUNTS),),
    training_curve=tuple((step, 9.7 - step / 200) for step in range(10, 601, 10)),
    holdout_curve=tuple((step, 9.8 - step / 200) for step in range(60, 601, 60)),
    scores=SCORES | {"rows": 1_820},
    hardware="CPU, 2 cores",
    tokens_per_second=5_123.4,
    version="0.1.0",
)


def front_matter(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


def test_front_matter_is_what_the_hub_reads():
    assert front_matter(render(FULL)) == {
        "language": "ko",
        "mask_token": "[MASK]",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["bert", "masked-language-model", "pretrained-from-scratch", "tpulm"],
    }


def test_a_model_is_named_without_the_folders_of_this_machine():
    assert name_of("/srv/a-customer/w/export") == "w" and name_of("klue/bert-base") == "klue/bert-base"
    assert name_of("runs/ko/export") == name_of("gs://bucket/runs/ko/export") == "ko"


FIGURES = {"documents read": "712,383", "left out: too short": "12", "exact duplicates left out": "7,001", "padding": "3.12%"}
FIGURES |= {"characters": "24,500,000", "tokens": "11,234,567", "training rows of 64 tokens": "181,234", "steps done": "600"}
FIGURES |= {"languages recognized": "ko 98.3%, uncertain 1.4%, en 0.1%, ja 0.1%, zh 0.1%, others 0.1%"}
FIGURES |= {"tokens of a document": "10% ≤ 6, 50% ≤ 12, 90% ≤ 40, 100% ≤ 1,200", "tokens of text in a row": "62.0"}
FIGURES |= {"passes over the rows": "0.21", "hardware": "CPU, 2 cores", "tokens of text per second": "5,123"}
FIGURES |= {"`train.optimizer.learning_rate`": "`0.0001`", "`tokenizer.vocab_size`": "`32000`", "loss": "6.5432"}
FIGURES |= {"accuracy": "12.35%", "baseline accuracy": "4.00%", "bits per character": "4.3281", "600": "6.700"}


def rows_of(card: str) -> list[tuple[str, str]]:
    """The first two columns of its tables."""
    return re.findall(r"^\| (.+?) \| (.+?) \|", card, re.MULTILINE)


def test_figures_are_stated_once_and_well():
    card = render(FULL)
    assert sorted(row for row in rows_of(card) if row[0] in FIGURES) == sorted(FIGURES.items())
    assert "too long" not in card
    for part in ("On 1,820 rows of held-out text, after step 600:", "Learned from reviews of films.", "with tpulm 0.1.0",
                 "| 600 | 6.700 | 6.800 |", "| loss | 6.5432 | mean cross-entropy of the predicted tokens, in nats |",
                 "masked-token loss / ln 2 × tokens / characters"):  # fmt: skip
        assert part in card


def test_rows_and_passes_are_told_of_each_length_that_was_trained_on():
    phases = (PhaseConfig(share=0.9, sequence_length=32, batch_size=128), PhaseConfig(share=0.1))
    short, long = manifest(CORPUS, rows=6_000, tokens=1), manifest(CORPUS, rows=1_500, tokens=1)
    train = short.train.model_copy(update={"rows": short.train.rows.model_copy(update={"sequence_length": 32})})
    short = short.model_copy(update={"train": train})
    card = render(replace(FULL, config=CONFIG.model_copy(update={"phases": phases}), datasets=(short, long), steps=550))
    found = dict(rows_of(card))
    assert [found[f"training rows of {length} tokens"] for length in (32, 64)] == ["6,000", "1,500"]
    passes = [found[f"passes over the rows of {length} tokens"] for length in (32, 64)]
    assert passes == ["11.52", "0.43"] and "rows of 32 and 64." in card  # 540 steps of 128 rows, and 10 of 64


def test_an_imported_dataset_is_told_as_such():
    card = render(replace(FULL, datasets=(manifest({"imported": "electra", "records": 2_000, "duplicates": 30}, rows=9),)))
    told = {"records of ELECTRA's build_pretraining_dataset.py read": "2,000", "exact duplicate rows left out": "30"}
    assert dict(rows_of(card)).items() >= {**told, "`data.sequence_length`": "`64`"}.items()
    for unsaid in ("`corpus.", "`tokenizer.", "short_fraction", "held-out documents", "tokens per character |"):
        assert unsaid not in card
    assert "held-out rows were kept out of training: other cuts of the same text flatter the scores" in card


def test_what_is_unknown_is_not_spoken_of():
    card = render(BARE)
    assert re.findall("^## .*$", card, re.MULTILINE) == ["## How to use", "## Training", "## Limitations"]
    assert front_matter(card).keys() == {"mask_token", "library_name", "pipeline_tag", "tags"}
    for word in ("None", "nan", "held-out", "hardware", "per second", "widget", "| Text |"):
        assert word not in card


def test_no_path_of_the_vocabulary_appears():
    config = CONFIG.model_copy(update={"tokenizer": TokenizerConfig(path="elsewhere/secret/vocab.txt")})
    assert ("tokenizer.path", '"vocab.txt"') in settings(config)
    assert "secret" not in render(replace(BARE, config=config))


def test_losses_are_shown_where_all_lines_have_them():
    held_out = (*FULL.holdout_curve, (601, float("nan")))
    card = render(replace(FULL, training_curve=(*FULL.training_curve, (601, 6.6)), holdout_curve=held_out))
    steps = [int(step) for step in re.findall(r"^\| (\d+) \| [\d.]* \| [\d.]* \|$", card, re.MULTILINE)]
    assert steps == [10, *range(60, 601, 60), 601] and "nan" not in card


def test_what_it_was_trained_by_is_what_was_done():
    by = "was pretrained from scratch by masked-language modelling"
    for changes, said in (
        ({}, f"{by} for"),
        ({"data.next_sentence": True}, f"{by} and next-sentence prediction for"),
        ({"train.objective.whole_words": True}, f"{by}, with whole words masked, for"),
        ({"train.start_from": "/somewhere/w/reviews/export"}, "was trained further, from the weights of `reviews`, by"),
    ):
        card = render(replace(BARE, config=load("bert-mini", {"data.next_sentence": False, **changes})))
        assert said in card and ("next-sentence" in card) is ("data.next_sentence" in changes)
        begun = "continued-pretraining" if "train.start_from" in changes else "pretrained-from-scratch"
        assert begun in front_matter(card)["tags"] and "/somewhere" not in card
    scores = {"step": 1, "loss": 1.0, "next_sentence_accuracy": 0.75}
    card = render(replace(FULL, config=load("bert-mini", {"data.next_sentence": True}), scores=scores))
    assert dict(rows_of(card))["next-sentence accuracy"] == "75.00%" and "bits per character" not in card
    assert "in nats, plus that of the next-sentence head" in card


def test_a_detector_is_judged_beside_its_generator():
    scores = {"step": 1, "loss": 27.4, "accuracy": 0.1, "baseline_accuracy": 0.09, "unigram_entropy": 7.4}
    scores |= {"detection_accuracy": 0.87, "detection_auc": 0.54, "detection_recall": 0.0, "replaced_fraction": 0.13}
    pairs = {"BLiMP": {"accuracy": 0.6, "pairs": 67_000, "method": "pseudo-log-likelihood"}}
    card = render(replace(BARE, config=load("electra-small"), half="discriminator", scores=scores, pairs=pairs))
    expected = {"detection AUC": "0.5400", "detection recall": "0.00%", "unigram cross-entropy": "7.4000"}
    assert dict(rows_of(card)).items() >= expected.items() and "13.00% of all were replaced" in card
    assert "the generator's share of 67,000 pairs" in card


def test_a_vocabulary_that_does_not_fit_is_told():
    card = render(replace(FULL, datasets=(manifest(CORPUS, rows=1, tokens=1, characters=100, unknown_characters=78),)))
    assert dict(rows_of(card))["unknown characters"] == "78.00%" and "does not fit" in card
    assert "does not fit" not in render(FULL)


def test_it_says_what_kind_of_model_it_is_and_how_to_use_it():
    for recipe, half, kind in (
        ("bert-mini", None, "A BERT with"),
        ("modern-mini", None, "A ModernBERT with"),
        ("laptop-lm", None, "A causal Transformer (Hugging Face's "),
        ("electra-small", "generator", "The generator of an ELECTRA, the small half that fills masks, with"),
    ):
        card = render(replace(BARE, config=load(recipe), half=half))
        snippet = re.search("```python\n(.*?)```", card, re.DOTALL)
        assert kind in card and snippet is not None
        compile(snippet[1], "snippet", "exec")
