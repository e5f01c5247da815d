"""From files of labelled text to examples and classes.

`read_examples` and `examples_of` read, `LabelSet` says what the classes are and `numbers` what a regression aims at.
`read_records` gives whole rows, for what writes them back with predictions. Formats and refusals are those of the corpus.
"""

from tpulm.labelled.columns import Columns
from tpulm.labelled.examples import Examples
from tpulm.labelled.labels import LabelSet, label_name, numbers
from tpulm.labelled.reading import examples_of, read_examples
from tpulm.labelled.records import Record, read_records

__all__ = [
    "Columns",
    "Examples",
    "LabelSet",
    "Record",
    "examples_of",
    "label_name",
    "numbers",
    "read_examples",
    "read_records",
]
