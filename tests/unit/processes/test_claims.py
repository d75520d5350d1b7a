"""Who publishes what several streams hear: somebody always, and only one but for a hand-over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.pipeline.topics import LiveTopic
from tardis_machine.processes.claims import Claimant, withheld_topics

BTC, ETH = (LiveTopic("trade", frozenset({name})) for name in ("BTC", "ETH"))
EVERY = LiveTopic("trade")
BARS = LiveTopic("trade_bar_1m", frozenset({"BTC"}))
NOTHING: frozenset[LiveTopic] = frozenset()


def claimant(*claimed: LiveTopic, hears: bool = True, lingering: frozenset[LiveTopic] = NOTHING) -> Claimant:
    return Claimant(frozenset(claimed), lingering, hears, NOTHING)


def test_the_first_that_hears_a_topic_publishes_it() -> None:
    assert withheld_topics([claimant(BTC), claimant(BTC, ETH)]) == [NOTHING, {BTC}]
    assert withheld_topics([claimant(BTC, hears=False), claimant(BTC, ETH)]) == [{BTC}, NOTHING]
    assert withheld_topics([claimant(BTC, hears=False), claimant(BTC, hears=False)]) == [NOTHING, NOTHING]


def test_one_that_hears_every_symbol_goes_first() -> None:
    assert withheld_topics([claimant(BTC, BARS), claimant(EVERY), claimant(ETH)]) == [{BTC}, NOTHING, {ETH}]
    assert withheld_topics([claimant(BTC), claimant(EVERY, hears=False)]) == [NOTHING, NOTHING]


def test_what_lingers_goes_on_as_before_while_another_begins() -> None:
    published = claimant(lingering=frozenset({BTC}))
    assert withheld_topics([published, claimant(BTC)]) == [NOTHING, NOTHING]
    unpublished = Claimant(NOTHING, frozenset({BTC}), True, frozenset({BTC}))
    assert withheld_topics([claimant(BTC), unpublished]) == [NOTHING, {BTC}]


topics = st.frozensets(st.sampled_from([BTC, ETH, EVERY, BARS]))


@given(st.lists(st.builds(Claimant, topics, st.just(NOTHING), st.booleans(), topics), max_size=6))
def test_what_is_heard_is_published_by_exactly_one(claimants: list[Claimant]) -> None:
    withheld = withheld_topics(claimants)
    for topic in (BTC, ETH, BARS):
        heard = [
            place
            for place, each in enumerate(claimants)
            if each.is_hearing and {topic, LiveTopic(topic.data_type)} & each.claimed
        ]
        publishing = [
            place
            for place in heard
            if any(asked not in withheld[place] for asked in {topic, LiveTopic(topic.data_type)} & claimants[place].claimed)
        ]
        assert len(publishing) == bool(heard)
