"""From files of labelled text to examples, classes, a part held out, and scores.

`read_examples` and `examples_of` read, `LabelSet` says what the classes are and `numbers` what a regression aims at, `hold_out`
sets a part aside, and `class_scores` and `regression_scores` measure. `read_records` gives whole rows, for what writes them
back with predictions. Formats and refusals are those of the corpus.
"""

from tpulm.labelled.columns import Columns
from tpulm.labelled.examples import Examples
from tpulm.labelled.labels import LabelSet, label_name, numbers
from tpulm.labelled.reading import TextRow, examples_of, read_examples, read_texts
from tpulm.labelled.records import Record, read_records
from tpulm.labelled.scores import ClassScores, RegressionScores, Summary, class_scores, regression_scores, summarize
from tpulm.labelled.split import Split, hold_out

__all__ = [
    "ClassScores",
    "Columns",
    "Examples",
    "LabelSet",
    "Record",
    "RegressionScores",
    "Split",
    "Summary",
    "TextRow",
    "class_scores",
    "examples_of",
    "hold_out",
    "label_name",
    "numbers",
    "read_examples",
    "read_records",
    "read_texts",
    "regression_scores",
    "summarize",
]
