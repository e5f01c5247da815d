"""The emulated Cloud TPU API v2; imported on first use, since google-cloud-tpu's types take a while to load.

`api` parses a request; `nodes` and `queue` carry it out in the `state` that they share. `control` takes the orders of tests.
"""
