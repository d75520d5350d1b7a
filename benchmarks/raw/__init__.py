"""The same client libraries sending ready bytes as fast as they can: what the publisher is compared with, `raw/<prefix>.py`."""
