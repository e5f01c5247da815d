"""The Cloud TPU API v2 on this machine; imported when it is first asked for, since google-cloud-tpu's types take a while."""
