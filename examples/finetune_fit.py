"""A text classifier in three lines: fit it, look at it, save it.

    python examples/finetune_fit.py w/export --train train.tsv --dev dev.tsv --output sentiment

MODEL is a work folder, an export or an import. The files are tsv, csv, jsonl or parquet, compressed or not, on disk or gs://.
finetune_custom_loop.py is the same training with a loop of one's own; it ends with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse

import tpulm
from tpulm import storage


def main() -> None:
    given = arguments()
    storage.check_writable(given.output)  # better refused now than after the training
    columns = tpulm.Columns(text=given.text_column, label=given.label_column)
    train, dev = (tpulm.read_examples(path, columns) for path in (given.train, given.dev))

    classifier = tpulm.Classifier(
        given.model, given.labels, epochs=given.epochs, batch_size=given.batch_size, learning_rate=given.learning_rate
    )
    classifier.fit(train, dev, progress=tpulm.PrintedProgress())
    classifier.save_pretrained(given.output)

    assert classifier.fitted is not None
    for scores in classifier.fitted.history:
        print(f"epoch {scores['epoch']:.0f}: train loss {scores['train_loss']:.4f}, dev accuracy {scores['accuracy']:.4f}")
    print(f"kept: epoch {classifier.fitted.best_epoch}, {classifier.evaluate(dev)}")
    for text, label in zip(dev.texts[:5], classifier.predict(dev.texts[:5]), strict=True):
        print(f"{label}\t{text}")
    print(f"'tpulm classify {given.output} TEXT' and transformers' AutoModelForSequenceClassification read {given.output}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--train", required=True, metavar="F", help="labelled texts to train on")
    parser.add_argument("--dev", required=True, metavar="F", help="labelled texts that choose the best epoch")
    parser.add_argument("--output", required=True, metavar="DIR", help="where the classifier goes")
    parser.add_argument("--text-column", default="text", metavar="NAME")
    parser.add_argument("--label-column", default="label", metavar="NAME")
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="in the order of the outputs; default: those of --train")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a step, over all devices")
    parser.add_argument("--learning-rate", type=float, help="default: by architecture and width")
    return parser.parse_args()


if __name__ == "__main__":
    main()
