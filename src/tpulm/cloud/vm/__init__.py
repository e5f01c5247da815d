"""What runs on the VMs before tpulm is installed: a shell script, and an agent that needs only an old Python."""
