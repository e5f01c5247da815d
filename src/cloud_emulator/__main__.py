"""`python -m cloud_emulator`: runs the emulator until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
from pathlib import Path

from cloud_emulator.catalogue import DEFAULT
from cloud_emulator.errors import EmulatorError
from cloud_emulator.server import PROJECT, Emulator, keep_private

ABOUT = """\
Cloud Storage, Cloud TPU VMs and what is around them in a Google Cloud project, on this machine: the production clients
(google-cloud-storage, gcsfs, TensorStore, google-cloud-tpu) talk to it unmodified, without an account and without cost.

It prints the variables that point a shell at it, with the token that it wants in every address:

    python -m cloud_emulator --bucket runs > emulator.sh & sleep 2
    . ./emulator.sh
    python -c 'from google.cloud import storage; print(list(storage.Client().list_buckets()))'
"""
LATER = """\
While it runs, faults, preemptions and skipped time are ordered over HTTP:

    curl -d '{"error_rate": 0.05, "latency_seconds": 0.02}' $STORAGE_EMULATOR_HOST/_control/faults
    curl -d '{"node": "run-a1", "grace_seconds": 5}' $STORAGE_EMULATOR_HOST/_control/tpu/preempt
    curl -d '{"seconds": 600}' $STORAGE_EMULATOR_HOST/_control/tpu/advance

What else can be ordered, and what it does not do: README.md beside this program.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m cloud_emulator", description=ABOUT, epilog=LATER, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=9023, help="of 127.0.0.1; 0 for any free one (%(default)s)")
    parser.add_argument("--folder", type=Path, metavar="F", help="keep objects here, for the next time; else in memory")
    parser.add_argument("--bucket", action="append", default=[], metavar="NAME", help="create this bucket; repeatable")
    parser.add_argument("--project", default=PROJECT, metavar="ID", help="the project that there is (%(default)s)")
    parser.add_argument("--accelerators", type=Path, default=DEFAULT, metavar="FILE", help="TPU types and zones, as TOML")
    arguments = parser.parse_args()
    try:
        emulator = Emulator(arguments.folder, arguments.port, arguments.project, accelerators=arguments.accelerators)
        for name in set(arguments.bucket) - set(emulator.bucket_names()):
            emulator.create_bucket(name)
        emulator.start()
    except (EmulatorError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    for ending in (signal.SIGINT, signal.SIGTERM):  # the first is ignored in what a script starts with &
        signal.signal(ending, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), emulator:
        keep_private(sys.stdout)
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in emulator.environment.items()), flush=True)
        print(f"emulated at {emulator.url}; Ctrl-C ends it", file=sys.stderr)
        signal.pause()


if __name__ == "__main__":
    main()
