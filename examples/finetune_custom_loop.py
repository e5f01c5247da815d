"""A text classifier with a training loop of one's own around the compiled step.

    python examples/finetune_custom_loop.py w/export --train train.tsv --dev dev.tsv --output sentiment

What a framework often leaves to the user is done: batches are split over all devices, padded to a few fixed lengths, and the
metrics are means over all devices. What happens between two steps is up to the loop. With the same arguments as
finetune_fit.py it ends with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse
import math

import jax

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
    config = classifier.config
    steps_per_epoch = math.ceil(len(train) / config.batch_size)
    best_accuracy, best_epoch, best_params = -math.inf, 0, None

    for step, state, metrics in tpulm.training_steps(classifier, train):
        if step % config.log_every_steps == 0:  # the metrics are means since the last multiple of this
            print(f"step {step}: loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.4f}")
        if step % steps_per_epoch:
            continue
        epoch, scores = step // steps_per_epoch, classifier.evaluate(dev, params=state.params)
        print(f"epoch {epoch}: train loss {metrics['loss']:.4f}, dev accuracy {scores['accuracy']:.4f}")
        if scores["accuracy"] > best_accuracy:
            # The next step takes the state's memory for its own, so what is to be kept goes to the host.
            best_accuracy, best_epoch, best_params = scores["accuracy"], epoch, jax.device_get(state.params)
        if config.patience is not None and epoch - best_epoch >= config.patience:
            break

    classifier.params = best_params
    classifier.save_pretrained(given.output)
    print(f"kept: epoch {best_epoch}, {classifier.evaluate(dev)}")
    for text, label in zip(dev.texts[:5], classifier.predict(dev.texts[:5]), strict=True):
        print(f"{label}\t{text}")


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
