"""The fault run: a real machine publishes replays while its broker and the machine itself are killed, hung and cut off.

python -m tests.fault BUS [--events N] [--seed N]     (make fault BUS=kafka EVENTS=… SEED=…)
"""
