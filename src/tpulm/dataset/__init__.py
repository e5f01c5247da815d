"""From documents to rows of token ids on disk, and from there to batches.

`prepare` builds W/dataset from the scattered corpus, `importing` from TFRecords, both through `parts`; `Batches` and
`evaluation_batches` read it. `layouts` and `segments` decide which tokens make a row, `store` how rows lie on disk, `order` in
which order training sees them. A part is what lies in one range of the corpus's hashes. `encode` turns texts into ids,
`blocks` reads stored rows, `random_streams` generates random numbers; `tfrecord`, `example`, `pretraining_records` and
`record_ranges` read Google's files for `importing`. This package does not import that, which would slow workers of `prepare`.
"""

from tpulm.dataset.batches import Batches, evaluation_batches, token_counts, with_columns
from tpulm.dataset.inspect import Removed, SampledRow, removed, sample_rows, summarize
from tpulm.dataset.manifest import DatasetManifest, load_manifest, load_manifests, load_split
from tpulm.dataset.prepare import MODULES, prepare, prepare_texts, warm_up, write_random_rows

__all__ = [
    "MODULES",
    "Batches",
    "DatasetManifest",
    "Removed",
    "SampledRow",
    "evaluation_batches",
    "load_manifest",
    "load_manifests",
    "load_split",
    "prepare",
    "prepare_texts",
    "removed",
    "sample_rows",
    "summarize",
    "token_counts",
    "warm_up",
    "with_columns",
    "write_random_rows",
]
