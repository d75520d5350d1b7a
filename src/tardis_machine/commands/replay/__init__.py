"""The `replay` command: one request without a client, to standard output, a file or the buses."""
