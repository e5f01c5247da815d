"""A process of its own for clients of a Hub, whose address and patience are fixed when they are imported.

Reads a line of JSON on standard input, {"sources": …, "workdir": …, …}, scatters that, and answers in a line; to the end.
"""

from __future__ import annotations

import json
import sys
import time

from tpulm.config import CorpusConfig
from tpulm.corpus import find_files, has_spill, read_part, scatter
from tpulm.errors import TpulmError


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        workdir = asked.pop("workdir")
        began = time.monotonic()
        try:
            config = CorpusConfig(**asked)
            manifest = scatter(config, workdir, part_bytes=16_000_000, workers=1)
            assert has_spill(workdir, manifest)
            part = read_part(workdir, manifest, 0)
            answer = {
                "fingerprint": manifest.fingerprint,
                "train": part.train,
                "holdout": part.holdout,
                "inputs": [item.model_dump() for item in manifest.inputs],
                "bytes": sum(file.bytes for file in find_files(config.sources, away=set())),
            }
        except TpulmError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer | {"seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
