"""The published ELECTRA-small is judged healthy, a collapsed one is not, and what nobody published is left unjudged."""

from __future__ import annotations

import pytest

from tpulm.train.health import judge, verdict

PUBLISHED = {
    "loss": 25.0,
    "mlm_loss": 7.1,
    "detection_loss": (25.0 - 7.1) / 50,
    "unigram_entropy": 7.4,
    "detection_accuracy": 0.867,
    "detection_auc": 0.68,
    "detection_recall": 0.05,
}


def test_the_published_run_is_all_right():
    checks = judge("electra", 5_000, PUBLISHED)
    assert len(checks) == 6
    assert verdict(checks, 5_000).startswith("all right: token loss 7.100 (at most 7.40); mlm loss 7.100 (1.50 to 7.60)")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"detection_auc": 0.5}, "detection auc 0.500 (0.60 to 1.00)"),
        ({"detection_recall": 0.0}, "detection recall 0.000"),
        ({"mlm_loss": 0.3}, "mlm loss 0.300 (1.50 to 7.60)"),
        ({"mlm_loss": 7.5}, "nothing learned yet but how frequent each token is"),
        ({"detection_loss": float("nan")}, "detection loss nan"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, float], named: str):
    said = verdict(judge("electra", 10_000, PUBLISHED | change), 10_000)
    assert said.startswith("outside after 10,000 steps: ")
    assert named in said


def test_the_weight_of_detection_does_not_matter():
    checks = judge("electra", 10_000, PUBLISHED | {"loss": 7.1 + 3 * PUBLISHED["detection_loss"]})
    assert all(check.inside for check in checks)


def test_before_the_published_steps_only_the_law_holds():
    (check,) = judge("electra", 4_999, PUBLISHED | {"detection_auc": 0.5})
    assert check.inside


@pytest.mark.parametrize("architecture", ["bert", "decoder"])
def test_other_models_are_held_to_the_law_alone(architecture):
    scores = {"loss": 5.0, "unigram_entropy": 7.0} | ({"mlm_loss": 4.3} if architecture == "bert" else {})
    (check,) = judge(architecture, 100_000, scores)
    assert check.value == scores.get("mlm_loss", 5.0) and check.inside
