"""Requests of every kind, and afterwards gateway and agent hold what they held before.

``make soak`` asks 100,000 times.
"""

import os

import pytest

from tests.support.served import Served
from tests.support.soak import Soak, leaks, table

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "3000"))
ENVIRONMENT = {"PANAL_NODE__SLOTS": "64"}


@pytest.mark.timeout(120 + REQUESTS // 10)
def test_nothing_stays_behind(served: Served) -> None:
    soak = Soak(served)
    states = soak.run(REQUESTS)
    print(f"\n{REQUESTS} requests in {soak.seconds:.0f} s\n{table(states)}")
    assert soak.wrong == []
    assert leaks(states) == []
