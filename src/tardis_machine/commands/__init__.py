"""The commands of the program, a module for each: serve, replay, stream, lake, exchanges, demo, doctor, config, completion.

`cli` is the entry. What commands share stands beside them: the event loop and its signals, requests from flags, the output of
lines, the progress of a replay, the backpressure of the buses.

Invariant: nothing is imported for a command that does not run. `settings.commands` lists them, and nobody imports this room.
"""
