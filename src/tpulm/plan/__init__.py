"""What a run will take and give: compiled for a TPU that is not attached, and predicted from small runs.

`analysis` compiles a program and asks for its memory, `hlo` reads the compiled text, `costs` says what each instruction takes,
`estimate` makes steps, hours and dollars of it and looks for a batch that fits. `advice` says whether a TPU would help, and
`scaling` predicts the held-out loss from that of small runs.
"""
