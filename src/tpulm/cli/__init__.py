"""The command line. Nothing heavier than typer and rich is imported before a command runs.

`app` gathers the commands and turns errors into exit codes; `options` makes options from the fields of settings. The
commands are in `run`, `tokenizer`, `dataset`, `finetune`, `use`, `bench`, `plan`, `report`, `cloud`, `cloud_runs` and
`reference` (recipes and settings); `terminal` and `bars` show tables and progress.
"""
