"""The README.md of a fine-tuned model."""

from __future__ import annotations

from tpulm.convert.markdown import code, table
from tpulm.finetuning.summary import FinetuneSummary


def card_text(summary: FinetuneSummary) -> str:
    """What it is, how it was made and chosen, and what it scored."""
    settings = summary.settings
    best = summary.seeds[summary.best]
    kind = "A regression" if summary.task == "regression" else f"A classifier of {len(summary.labels)} classes"
    several = f" The mean of {len(summary.seeds)} seeds and their sample deviation." if len(summary.seeds) > 1 else ""
    names = [name for name in best.dev if name != "loss"]
    parts = summary.scored
    rows = [[name.replace("_", " "), *(summary.shown(part, name) for part in parts)] for name in names]
    counts = ", ".join(f"{part} {count:,}" for part, count in summary.examples.items())
    labels = [] if not summary.labels else ["", "Labels: " + ", ".join(code(name) for name in summary.labels[:50]) + "."]
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-classification",
            "tags: [tpulm]",
            "---",
            "",
            f"# Fine-tuned from {code(summary.model)}",
            "",
            f"{kind}, made by tpulm. Examples: {counts}.",
            *labels,
            "",
            "## Scores",
            "",
            f"The epoch and the seed were chosen by {settings.chosen_by.replace('_', ' ')} on dev, never on test.{several}",
            "",
            table(["", *parts], rows, right=range(1, len(parts) + 1)),
            "",
            *([] if summary.health == "all right" else [f"**Not all right**: {summary.health}.", ""]),
            "## Training",
            "",
            f"Up to {settings.epochs} epochs, batches of {settings.batch_size}, rows of {settings.max_length} tokens at most, "
            f"AdamW with a learning rate of {settings.learning_rate:g}, layer-wise decay {settings.layer_decay:g}. This model: "
            f"seed {best.seed}, epoch {best.best_epoch} of {best.epochs}.",
            "",
            "## Use",
            "",
            "```python",
            "from transformers import pipeline",
            "",
            'classify = pipeline("text-classification", model="this folder")',
            "```",
            "",
        ]
    )
