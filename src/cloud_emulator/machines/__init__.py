"""TPU VMs as local processes: folders of their own, a metadata server each, and an end that leaves nothing behind."""
