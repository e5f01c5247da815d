"""Examples of each task: reviews whose labels the words good, bad and very decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tpulm
from encoders import built, reviews
from tpulm.labelled import Examples
from tpulm.labelled.rows import Rows
from tpulm.nn.params import named_leaves

FIELDS: dict[str, tuple[str, ...]] = {  # of the rows of files
    **dict.fromkeys(("classification", "regression", "multilabel", "tag"), ("text", "label")),
    "qa": ("question", "context", "answers"),
    "choice": ("question", "choices", "label"),
    "embed": ("text", "pair", "label"),
    "retrieve": ("text", "pair", "negative"),
}


NO_ROWS = Rows(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int64))
NO_EXAMPLES = Examples([], None, None, [])


def examples_of(task: str, count: int, *, seed: int = 0) -> list[Any]:
    """As `Classifier` takes them."""
    found, rng = reviews(count, seed=seed), np.random.default_rng(seed)
    words = ["good" if label == "pos" else "bad" for _, label in found]
    match task:
        case "regression":
            return [(text, 1000.0 + 50.0 * text.split().count("very")) for text, _ in found]
        case "multilabel":
            texts = [text.replace("good", "film") if number % 16 == 1 else text for number, (text, _) in enumerate(found)]
            meaning = {"bad": "blame", "very": "emphatic", "good": "praise"}
            return [(text, [label for word, label in meaning.items() if word in text.split()]) for text in texts]
        case "tag":
            kinds = {"good": "praise", "bad": "blame"}
            begins = [text.index(word) for (text, _), word in zip(found, words, strict=True)]
            spans = [[[begin, begin + len(word), kinds[word]]] for begin, word in zip(begins, words, strict=True)]
            return [(text, span) for (text, _), span in zip(found, spans, strict=True)]
        case "qa":  # the text of every fifth has no answer
            answers = [[{"text": word, "answer_start": text.index(word)}] for (text, _), word in zip(found, words, strict=True)]
            texts = [f"{text} and the plot" for text, _ in found]
            texts[::5] = [text.replace("good", "and").replace("bad", "and") for text in texts[::5]]
            answers[::5] = [[]] * len(texts[::5])
            return [("was the film", text, answer) for text, answer in zip(texts, answers, strict=True)]
        case "choice":  # of two to four, of which one has the word "good"
            choices = [[" ".join(rng.choice(["the", "film", "plot"], 3)) for _ in range(rng.integers(2, 5))] for _ in found]
            right = [int(rng.integers(len(some))) for some in choices]
            for some, one in zip(choices, right, strict=True):
                some[one] += " good"
            return [("was the film", some, one) for some, one in zip(choices, right, strict=True)]
        case "embed":  # two reviews: 4 where both are good or both bad, less 1 where one of them is longer
            others = [reviews(count, seed=seed + 100)[number] for number in rng.permutation(count)]
            pairs = [(text, other, 4.0 * (x == y)) for (text, x), (other, y) in zip(found, others, strict=True)]
            return [(text, other, score - (len(text.split()) != len(other.split()))) for text, other, score in pairs]
        case "retrieve":  # words about one of six things, the sentence that says it, and one that says the contrary
            things = [rng.choice(["film", "plot", "cast"]) for _ in found]
            return [
                (" ".join(rng.permutation([thing, word, "the", "very"])), f"the {thing} was {word}", f"the {thing} was {other}")
                for thing, word in zip(things, words, strict=True)
                for other in ["bad" if word == "good" else "good"]
            ]
    return found


def untrained(task: str, kind: str = "bert", **settings: Any) -> tuple[tpulm.Classifier, Any]:
    """A classifier with random parameters in all its leaves, and eight examples as it encodes them."""
    classifier = tpulm.Classifier(built(kind), task=task, **{"max_length": 16, **settings})
    data, rng = classifier.encode(examples_of(task, 8), learn=True), np.random.default_rng(0)

    def noisy(leaf: Any) -> Any:
        return leaf + rng.normal(scale=0.1, size=leaf.shape).astype(np.float32)

    classifier.params = jax.tree.map(noisy, classifier.first_params(0))
    return classifier, data


def same(first: Any, second: Any) -> bool:
    """Whether two trees of parameters are equal, bit for bit."""
    a, b = named_leaves(first), named_leaves(second)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def write_jsonl(path: Path, task: str, examples: list[Any]) -> Path:
    rows = [dict(zip(FIELDS[task], example, strict=True)) for example in examples]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
