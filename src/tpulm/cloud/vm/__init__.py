"""What runs on the VMs themselves, before tpulm is there: a shell script, and an agent that needs only an old Python."""
