"""Processes that do the work of requests, off the server's event loop: replays in workers, live requests in one each.

Invariant: a process lives only as long as its socket to the server; when the server goes, however it goes, it ends.
"""
