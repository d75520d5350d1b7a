"""HTTP and WebSocket in front of an engine: routes, and the server as an object.

Invariant: what is written to a client is finished bytes; nothing is mapped or encoded here.
"""
