"""Labelled text: reading examples, their classes, a dev split, rows of token ids, and scores. Never imports JAX.

`records` reads files, `examples` turns records into texts with labels, `labels` numbers the classes, `split` holds out a dev
set, `rows` encodes. `scores`, `entities` and `answers` score predictions of classes, of spans in a text, and of answers.
"""

from tpulm.labelled.examples import (
    Columns as Columns,
    Examples as Examples,
    example_fault as example_fault,
    examples_of as examples_of,
    is_table_of_columns as is_table_of_columns,
    label_fault as label_fault,
    label_set_fault as label_set_fault,
    read_examples as read_examples,
    read_texts as read_texts,
)
from tpulm.labelled.labels import (
    LabelSet as LabelSet,
    label_name as label_name,
    number_fault as number_fault,
    numbers as numbers,
)
from tpulm.labelled.scores import (
    average_auprc as average_auprc,
    class_scores as class_scores,
    label_set_scores as label_set_scores,
    regression_scores as regression_scores,
    retrieval_scores as retrieval_scores,
    summarize as summarize,
)
from tpulm.labelled.split import Split as Split, hold_out as hold_out
