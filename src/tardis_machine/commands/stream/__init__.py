"""The `stream` command: live data without a client, to the buses or to standard output, as a service."""
