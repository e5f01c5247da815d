"""Converting models to and from other formats."""
