"""What makes long work restartable, on processes and hosts; of texts and models it knows nothing.

Resumable work is a `stage`: units with a record each, shared out over the `hosts` (which talk by `channel`) and, on each, over
the processes of `workers` or the machines of `beam`. `interrupt` turns signals into a stop at the next step, `watchdog`
notices a hang, `failures` writes down why a run ended, `memory` keeps freed memory for the next step, and says what is short.
"""
