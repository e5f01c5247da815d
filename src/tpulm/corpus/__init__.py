"""From files of raw text to clean documents, which are read back in random parts.

`scatter` reads every source once and writes W/corpus; `read_part` and `sample_texts` read it back. Files and their formats are
in `sources` and `readers`, cleaning in `cleaning`, what a document's hash decides in `identity`.
"""

from tpulm.corpus.documents import merge_samples
from tpulm.corpus.manifest import CorpusManifest, load_manifest, load_removed, verify
from tpulm.corpus.parts import Part, read_part, sample_texts, some_texts
from tpulm.corpus.scatter import remove_spill, scatter
from tpulm.corpus.sentences import split_sentences
from tpulm.corpus.sources import find_files, read_texts

__all__ = [
    "CorpusManifest",
    "Part",
    "find_files",
    "load_manifest",
    "load_removed",
    "merge_samples",
    "read_part",
    "read_texts",
    "remove_spill",
    "sample_texts",
    "scatter",
    "some_texts",
    "split_sentences",
    "verify",
]
