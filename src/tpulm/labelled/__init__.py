"""Labelled text: reading examples, their classes, a dev split, rows of token ids, and scores. Never imports JAX.

`records` reads files, `examples` turns records into texts with labels, `labels` numbers the classes, `split` holds out a dev
set, `rows` encodes. `scores`, `entities` and `answers` score predictions of classes, of spans in a text, and of answers.
"""

from tpulm.labelled.examples import (
    Columns,
    Examples,
    example_fault,
    examples_of,
    is_table_of_columns,
    label_fault,
    label_set_fault,
    read_examples,
    read_texts,
)
from tpulm.labelled.labels import LabelSet, label_name, number_fault, numbers
from tpulm.labelled.scores import average_auprc, class_scores, label_set_scores, regression_scores, retrieval_scores, summarize
from tpulm.labelled.split import Split, hold_out

__all__ = [
    "Columns",
    "Examples",
    "LabelSet",
    "Split",
    "average_auprc",
    "class_scores",
    "example_fault",
    "examples_of",
    "hold_out",
    "is_table_of_columns",
    "label_fault",
    "label_name",
    "label_set_fault",
    "label_set_scores",
    "number_fault",
    "numbers",
    "read_examples",
    "read_texts",
    "regression_scores",
    "retrieval_scores",
    "summarize",
]
