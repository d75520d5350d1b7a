"""What an event is: a normalized message as Protobuf `lakehouse.bronze.v1.NormalizedEvent`, with its id, and back.

Invariant: nothing here knows how an event is delivered. Imports leaves and `generated` only.
"""
