"""The published ELECTRA-small is judged healthy, a collapsed one is not; advice names only what a run has otherwise."""

from __future__ import annotations

from typing import Any

from tpulm.config import RunConfig, TrainConfig, load
from tpulm.train import health
from tpulm.train.health import advice_for, helpful_settings, judge, verdict

PUBLISHED = {"loss": 25.0, "mlm_loss": 7.1, "detection_loss": (25.0 - 7.1) / 50, "unigram_entropy": 7.4}
PUBLISHED |= {"detection_accuracy": 0.867, "detection_auc": 0.68, "detection_recall": 0.05}


def test_the_published_run_is_all_right():
    checks = judge(5_000, PUBLISHED)
    assert len(checks) == 6
    assert verdict(checks, 5_000).startswith("all right: generator token loss 7.100 (at most 7.30)")


def test_what_is_wrong_is_named():
    """The published bands count from the published number of steps on."""
    for change, named, steps in (
        ({"detection_auc": 0.54}, "detector AUC 0.540 (at least 0.60)", 200),
        ({"detection_recall": 0.0}, "detector recall 0.000 (at least 0.02)", 200),
        ({"mlm_loss": 7.35}, "generator token loss 7.350", 200),
        ({"mlm_loss": float("nan")}, "generator token loss nan", 200),
        ({"mlm_loss": 0.3}, "generator loss 0.300 (1.50 to 7.60)", 5_000),
        ({"detection_loss": 0.6}, "detector loss 0.600 (0.06 to 0.42)", 5_000),
    ):
        text = verdict(judge(steps, PUBLISHED | change), steps)
        assert text.startswith(f"outside after {steps:,} steps: ") and named in text
        assert all(check.inside for check in judge(steps - 1, PUBLISHED | change)) or steps == 200


def test_other_models_are_held_to_the_law_alone():
    encoder, decoder = {"loss": 5.0, "mlm_loss": 4.3, "unigram_entropy": 7.0}, {"loss": 5.0, "unigram_entropy": 7.0}
    for scores, value in ((encoder, 4.3), (decoder, 5.0)):
        (check,) = judge(100_000, scores)
        assert check.value == value and check.inside


def test_the_plateau_of_word_frequencies_is_recognized():
    """bert-mini on Korean reviews: 45 and 450 steps, other settings."""
    for loss, at_unigrams in ((7.74, True), (7.42, True), (6.68, False)):
        scores = {"loss": loss, "mlm_loss": loss, "unigram_entropy": 7.462}
        assert health.is_at_unigrams(scores) is at_unigrams
        (check,) = judge(450, scores)
        assert check.inside is not at_unigrams
    note = health.plateau_note({"loss": 9.0, "mlm_loss": 7.74, "unigram_entropy": 7.462}, 45, 450, "Try this")
    assert "loss on held-out tokens, 7.74, is still that of" in note


def run(**changes: Any) -> RunConfig:
    return load("bert-mini", {"train.steps": 450, **changes})


def verdict_of_nothing_learned(config: RunConfig) -> str:
    steps = config.train.steps
    return verdict(judge(steps, {"loss": 8.0, "unigram_entropy": 7.4}), steps, advice=advice_for(config))


def test_a_shortened_recipe_wants_its_steps_back():
    """Its architecture and rate have been tried."""
    slow = {"train.steps": 500, "train.optimizer.learning_rate": 1e-5, "train.optimizer.warmup_steps": 400}
    faster = ["train.optimizer.warmup_steps = 50", "train.optimizer.learning_rate = 0.007"]
    for recipe, settings, helps in (
        ("laptop-bert", {"train.steps": 500}, ["train.steps = 5200"]),
        ("laptop-lm", {"train.steps": 400}, ["train.steps = 1600"]),
        ("laptop-bert", slow, ["train.steps = 5200", *faster]),
    ):
        config = load(recipe, settings)
        assert helpful_settings(config) == helps
        said = verdict_of_nothing_learned(config)
        assert said.startswith(f"outside after {config.train.steps} steps: ") and said.endswith(", ".join(helps))


def test_after_a_few_dozen_steps_more_are_wanted_whatever_the_settings_are():
    said = verdict_of_nothing_learned(load("laptop-bert", {"train.steps": 40}))
    assert said.startswith("40 steps") and "8.000 (at most 7.30)" in said and "train." not in said


def test_nothing_is_judged_during_warm_up():
    for steps, warmup, judged in ((6000, None, 1200), (6000, 100, 600), (500, None, 200), (1000, 400, 800)):
        train = TrainConfig.model_validate({"steps": steps, "optimizer": {"warmup_steps": warmup}})
        assert health.first_verdict(train) == judged


def test_advice_names_what_differs_and_nothing_else():
    lines = helpful_settings(run())
    assert lines == [
        "train.optimizer.learning_rate = 0.001",
        "model.initializer_range = 0.06",
        "train.optimizer.bias_correction = true",
        "model.dropout = 0",
        "model.attention_dropout = 0",
        'model.norm_position = "pre"',
        "data.next_sentence = false",
        'data.rows = "packed"',
    ]
    steps = "train.steps = 450"
    assert advice_for(load("bert-mini", [steps, *lines])) == "More steps or more text may help"
    for one in lines[1:3]:
        others = [line for line in lines if line != one]
        assert helpful_settings(load("bert-mini", [steps, *others])) == [one]


def test_advice_can_be_followed():
    """What is proposed for each kind of model is a valid run."""
    for recipe in ("bert-mini", "modern-mini", "electra-small", "lm1b"):
        short = ["train.steps=1000", "train.optimizer.warmup_steps=100"]
        lines = helpful_settings(load(recipe, short))
        assert helpful_settings(load(recipe, [*short, *lines])) == []


def test_advice_leaves_out_what_cannot_be_changed():
    assert not any(line.startswith("data.") for line in helpful_settings(run(), imported=True))
    started = helpful_settings(run(**{"train.start_from": "model"}))
    assert not any(line.startswith(("model.init", "model.norm")) for line in started)
    assert not any("dropout" in line for line in helpful_settings(load("bert-mini")))  # a million steps


def test_a_vocabulary_that_does_not_fit_comes_before_more_steps():
    said = advice_for(run(), unknown_fraction=0.78)
    assert said.startswith("78% of the text's characters are unknown")
    assert "tokenizer.vocab_size" in said and "steps" not in said
    assert "tokenizer.path" in advice_for(run(**{"tokenizer.path": "vocab.txt"}), unknown_fraction=0.78)


def test_losses_that_are_not_the_same_quantity_are_explained():
    electra = load("electra-small", {"train.steps": 6_000, "train.objective.mask_fraction": 0.25})
    assert health.loss_formula(electra) == "generator + 50 x detector"
    assert all(part in health.why_losses_differ(electra) for part in ("dropout", "25%", "15%"))
    assert health.loss_formula(run()) == "tokens + next sentence"
    same = load("lm1b", {"model.dropout": 0.0, "model.attention_dropout": 0.0, "train.log_every_steps": 10})
    assert health.why_losses_differ(same) == health.loss_formula(same) == ""
    phases = [{"share": 0.5, "objective": "clm"}, {"share": 0.5, "mask_fraction": 0.4}]
    assert "masks 40% of the tokens" in health.why_losses_differ(load("laptop-modern", {"phases": phases}))
    tokens = load("laptop-modern", {"phases": [], "train.objective.name": "clm", "train.objective.whole_words": True})
    assert "masks" not in health.why_losses_differ(tokens)
    for settings in ({"train.optimizer.average_decay": 0.99}, {"train.checkpoint.average_last": 2}):
        assert "averaged weights" in health.why_losses_differ(
            load("laptop-lm", {"train.checkpoint.every_steps": 100} | settings)
        )
