"""Live requests in a process each, or in this one."""

from __future__ import annotations

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.pipeline.request import StreamRequest
from tardis_machine.processes.jobs.contract import LiveSpec
from tardis_machine.processes.live_pool import LivePool


@pytest.mark.parametrize("in_process", [False, True])
async def test_a_request_that_can_not_begin_says_why(in_process: bool) -> None:
    request = StreamRequest(exchange="bitmex", data_types=["trade"], symbols=["XBTUSD"])
    spec = LiveSpec([request], "frames", None, {"nowhere": "ws://x"})
    pool = LivePool(in_process=in_process)
    with pytest.raises(OptionsError, match="exchange-urls: expected an exchange that has live data"):
        async for _ in pool.run(spec):
            pass
    await pool.stop()
    assert not pool.pids
