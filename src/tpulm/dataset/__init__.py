"""From documents to rows of token ids on disk, and from there to batches.

`prepare` builds W/dataset from the scattered corpus; `Batches` and `evaluation_batches` read it. Which tokens make a row is in
`segments`, `packing` and `causal`, how rows lie on disk in `store`, in which order training sees them in `order`.
Rows of others come in by `importing`, which is not loaded here: no worker of `prepare` should pay for it.
"""

from tpulm.dataset.batches import Batches, with_columns
from tpulm.dataset.evaluation import evaluation_batches, token_counts
from tpulm.dataset.inspect import Removed, SampledRow, Summary, removed, sample_rows, summarize
from tpulm.dataset.manifest import Counts, DatasetManifest, RowFormat, SplitManifest, load_manifest, load_split
from tpulm.dataset.prepare import MODULES, prepare, prepare_texts, verify, warm_up

__all__ = [
    "MODULES",
    "Batches",
    "Counts",
    "DatasetManifest",
    "Removed",
    "RowFormat",
    "SampledRow",
    "SplitManifest",
    "Summary",
    "evaluation_batches",
    "load_manifest",
    "load_split",
    "prepare",
    "prepare_texts",
    "removed",
    "sample_rows",
    "summarize",
    "token_counts",
    "verify",
    "warm_up",
    "with_columns",
]
