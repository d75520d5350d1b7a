"""A consumer of Kafka in a process of its own: how old each trade of `live_exchange` is when its event can be read.

    python -m benchmarks.kafka_reader BROKERS TOPIC     prints "ready", then {"messages", "ages_ms": [p50, p99, max]}

Invariant: it reads until the last trade. Nobody can read what is not confirmed, so that the ages are no less than those of confirmations.
"""

from __future__ import annotations

import json
import re
import sys
import time

from confluent_kafka import Consumer, TopicPartition

from benchmarks.live_exchange import LAST

# A trade's id is the time at which it was sent.
_ID = re.compile(rb"(?<!\d)1\d{18}(?!\d)")


def read(brokers: str, topic: str) -> dict[str, object]:
    """What came, until the last trade."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "bench", "enable.auto.commit": False, "log_level": 0})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    print("ready", flush=True)
    ages: list[int] = []
    messages, last, is_last = 0, LAST.encode(), False
    while not is_last:
        records = consumer.consume(1000, timeout=0.001)
        now_ns = time.time_ns()
        for record in records:
            if record.error() is not None:
                sys.exit(f"the topic can't be read: {record.error()}")
            value = record.value()
            found = _ID.search(value)
            if found:
                ages.append(now_ns - int(found[0]))
            is_last = is_last or last in value
        messages += len(records)
    consumer.close()
    ages.sort()
    points = [ages[int(len(ages) * part)] / 1e6 for part in (0.5, 0.99)] + [ages[-1] / 1e6] if ages else []
    return {"messages": messages, "ages_ms": points}


if __name__ == "__main__":
    print(json.dumps(read(*sys.argv[1:])))
