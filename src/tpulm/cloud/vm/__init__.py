"""What runs on the VMs before tpulm is installed: programs that need only a shell or an old Python, and import no tpulm.

`boot.sh` starts `agent`, which has `install` find or make an interpreter with the bundle's tpulm, runs the trainer in it,
watches it (`hang`) and reports to W/cloud through `services`. `probe` is what `tpulm cloud smoke` runs instead.
"""
