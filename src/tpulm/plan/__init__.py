"""A run on a TPU that is not attached: compiled by its real compiler, and what that says of memory, time and money.

`analysis` compiles a program and asks for its memory, `hlo` reads the compiled text, `costs` says what each instruction
takes, `estimate` makes steps, hours and dollars of it and looks for a batch that fits, `advice` says what would be better.
"""
