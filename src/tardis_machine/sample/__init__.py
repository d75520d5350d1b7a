"""A seeded market that speaks each exchange's own format, and a stand-in of the history API that serves it.

`market` is the truth (books, trades, marks), `venues` put it into each exchange's words, `recording` is what a recorder would
have written down, `history_api` serves that over HTTP, `cache_dir` writes it where clients keep what they fetched.
"""
