"""What turns recorded lines into messages and bytes: requests, the normalizer, the merger, frames, and the library's iterators.

Invariant: between lines and bytes everything is synchronous and pure, so that the library, the server and Spark run the same code.
"""
