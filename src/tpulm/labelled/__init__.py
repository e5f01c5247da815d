"""From files of labelled text to examples, classes, and a part held out.

`read_examples` and `examples_of` read, `LabelSet` says what the classes are and `numbers` what a regression aims at, and
`hold_out` sets a part aside. `read_records` gives whole rows, for what writes them back with predictions. Formats and refusals
are those of the corpus.
"""

from tpulm.labelled.columns import Columns
from tpulm.labelled.examples import Examples
from tpulm.labelled.labels import LabelSet, label_name, numbers
from tpulm.labelled.reading import examples_of, read_examples
from tpulm.labelled.records import Record, read_records
from tpulm.labelled.split import Split, hold_out

__all__ = [
    "Columns",
    "Examples",
    "LabelSet",
    "Record",
    "Split",
    "examples_of",
    "hold_out",
    "label_name",
    "numbers",
    "read_examples",
    "read_records",
]
