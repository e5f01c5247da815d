"""The foundations of a run: worker processes, Beam, the other hosts, signals, failure records.

Resumable work is a `stage`: units with a record each, shared out over the `hosts` (which talk by `channel`) and, on each,
over the processes of `workers` or the machines of `beam`. `interrupt` turns signals into a stop at the next step, `watchdog`
notices a hang, `failures` writes down why a run ended, `memory` keeps what the allocator has.
"""
