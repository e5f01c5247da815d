"""Models in plain JAX."""
