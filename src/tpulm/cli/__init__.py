"""The command line. Nothing heavier than typer and rich is imported before a command runs."""
