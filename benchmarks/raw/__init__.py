"""The same client libraries sending ready bytes as fast as they can: what the publisher is compared with, `raw/<prefix>.py`.

Each has `send_ready`, which returns when all is confirmed, and calls `begin` as soon as it is connected: from there the clock runs.
"""
