"""What a run stands on: worker processes, Beam, the other hosts, signals, records of failures."""
