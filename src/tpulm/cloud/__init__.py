"""Runs on preemptible TPU VMs: launched, kept alive, and gone when they end."""
