"""A program: prints, for every exchange of the sample market, a digest of what a recording is normalized to.

python -m tests.exchanges.print_normalized
"""

from __future__ import annotations

from hashlib import sha256

from tardis_machine.exchanges import EXCHANGES
from tardis_machine.messages import to_json_lines
from tardis_machine.pipeline.normalizer import Normalizer
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.sample.venues import VENUES

START_US = 1_711_929_600_000_000  # 2024-04-01

if __name__ == "__main__":
    recording = Recording(SampleMarket(3, 0.2), disconnects_per_day=2_880)
    for exchange in sorted(VENUES):
        normalizer = Normalizer(exchange, EXCHANGES[exchange].data_types, START_US, with_disconnects=True)
        lines = recording.slice(exchange, START_US, 1, normalizer.filters()).splitlines()
        print(exchange, sha256(to_json_lines(normalizer.feed_lines(lines))).hexdigest())
