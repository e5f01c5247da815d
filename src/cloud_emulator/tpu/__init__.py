"""The emulated Cloud TPU API v2; imported on first use, since google-cloud-tpu's types take a while to load."""
