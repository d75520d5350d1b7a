"""Processes that do the work of requests, off the server's event loop.

A pool (`replay_pool`, `live_pool`) picks where a job runs: in a child process (`child`, whose program is `worker`) or, for debugging,
in this one (`in_process`). Either way `runner` starts it and yields what it makes, out of its `output_queue`. What a job does is in
`jobs`: replays, of which a process runs many in turn, and live streams (`live_stream`), which have a process each and many clients.

Invariant: a child lives only as long as its socket to the server; when the server goes, however it goes, its children end.
"""
