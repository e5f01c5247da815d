"""The foundations of a run: worker processes, Beam, the other hosts, signals, failure records."""
