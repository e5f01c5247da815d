"""VMs as processes of this machine (docs/design/emulated-tpus.md)."""
