"""The training of pretraining and fine-tuning runs, which share one loop.

`loop` restores a checkpoint (`checkpoint`), then runs the compiled step of a program for each batch, logs (`metrics`,
`trackers`), evaluates and saves. `program` compiles `step` for a mesh (`mesh`) with an `optimizer`; `finetuning_program` is
the program of fine-tuning, with its batches. `distributed` starts JAX on several hosts, `platforms` checks the device.
`evaluate` scores held-out text, `health` compares the scores with those of healthy runs, `throughput` counts tokens a second
and MFU.
"""
