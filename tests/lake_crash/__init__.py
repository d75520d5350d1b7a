"""The crash run: the ingest job is killed again and again, and its lake is compared with that of a job that nobody disturbed, row by row.

python -m tests.lake_crash [--events N] [--kills N] [--seed N]     (make crash EVENTS=… KILLS=… SEED=…)
"""
