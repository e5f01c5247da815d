"""From files of raw text to clean documents, which are read back in random parts.

`sources` finds the files. `scatter` cuts them into pieces (a file, or a range of its bytes), each read by one worker: a reader
(`readers`) yields batches of `documents`, `cleaning` edits or drops them, and `spill` keeps the rest on disk, sorted by hash.
A part is one range of hashes of all spills: `parts` reads it back without the duplicates, near ones by `near`, and `identity`
says what else a hash decides. `manifest` records in W/corpus what was read.
"""

from tpulm.corpus.documents import merge_samples as merge_samples
from tpulm.corpus.manifest import (
    CorpusManifest as CorpusManifest,
    load_manifest as load_manifest,
    load_removed as load_removed,
    verify as verify,
)
from tpulm.corpus.parts import Part as Part, read_part as read_part, sample_texts as sample_texts, some_texts as some_texts
from tpulm.corpus.scatter import remove_spill as remove_spill, scatter as scatter
from tpulm.corpus.sentences import split_sentences as split_sentences
from tpulm.corpus.sources import find_files as find_files, read_texts as read_texts
