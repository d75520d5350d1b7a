"""A seeded market that speaks each exchange's own format, and stand-ins of the history API and of live exchanges that serve it.

`market` is the truth (books, trades, marks), `venues` put it into each exchange's words, `recording` is what a recorder would
have written down, `history_api` serves that over HTTP, `cache_dir` writes it where clients keep what they fetched, `live` are
the exchanges themselves, as the market runs.
"""
