"""The table at the end of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpulm.cli.run import show_summary
from tpulm.pipeline import Summary

ELECTRA = Summary(
    name="el",
    workdir="w",
    steps=200,
    parameters=1_528_961,
    train_loss=32.3340,
    eval_loss=28.1008,
    eval_accuracy=0.1918,
    eval_baseline_accuracy=0.0816,
    train_scores={"mlm_loss": 6.8085, "detection_loss": 0.5105},
    eval_scores={
        "mlm_loss": 6.8840,
        "detection_loss": 0.4243,
        "detection_auc": 0.6067,
        "detection_recall": 0.0,
        "replaced_fraction": 0.149,
    },
    loss_is="generator + 50 x detector",
    losses_differ="training masks 25% of the tokens, held-out text 15%",
    bits_per_character=4.7170,
    tokens_per_second=3403.2,
    text_fraction=0.978,
    mfu=0.32,
    unknown_fraction=0.0006,
    health="outside after 200 steps",
    export="w/export",
    stages={"train": "done"},
)


def rows(summary: Summary, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_summary(summary)
    return [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]


def test_of_electra_each_figure_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = rows(ELECTRA, capsys)
    for line in (
        "training loss 32.3340 (generator 6.8085, detector 0.5105)",
        "held-out loss 28.1008 (generator 6.8840, detector 0.4243)",
        "… both are generator + 50 x detector",
        "generator accuracy 0.1918",
        "detector AUC 0.6067 (0.5 is chance)",
        "detector recall 0.0000 of the 14.9% of tokens replaced",
        "unknown tokens 0.06%",
        "speed 3,403 tokens/s (98% of slots), MFU 32%",
    ):
        assert line in shown, line
    assert f"… differ because {ELECTRA.losses_differ}" in " ".join(shown)


def test_what_does_not_apply_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"mlm_loss": 6.0, "loss": 6.0}
    plain = replace(ELECTRA, train_scores=scores, eval_scores=scores, loss_is="", losses_differ="", unknown_fraction=0.0)
    shown = rows(plain, capsys)
    assert "training loss 32.3340" in shown and "held-out accuracy 0.1918" in shown
    assert not any(line.startswith(("… both", "… differ", "detector", "unknown")) for line in shown)
