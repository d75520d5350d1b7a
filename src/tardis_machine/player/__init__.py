"""The player: replays at the pace of their local time, steered while they run.

Invariant: when something is sent depends on one clock for each replay, which knows no event loop; what is sent, and in which order, is
what the replay would send without it.
"""
