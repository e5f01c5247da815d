"""From files of raw text to clean documents, which are read back in random parts.

`sources` finds the files. `scatter` cuts them into pieces (a file, or a range of its bytes), each read by one worker: a reader
(`readers`) yields batches of `documents`, `cleaning` edits or drops them, and `spill` keeps the rest on disk, sorted by hash.
A part is one range of hashes of all spills: `parts` reads it back without the duplicates, near ones by `near`, and `identity`
says what else a hash decides. `manifest` records in W/corpus what was read.
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
