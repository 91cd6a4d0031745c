"""The demonstration is the product: it must work whenever somebody shows it."""

import json
import os
import subprocess
import sys
import time

import pytest

from panal.node.weights import SMOLLM2_135M, ModelCache, cache_folder
from tests.support.installation import processes_naming


@pytest.mark.model
def test_demo_failover_shows_an_answer_that_survives_and_leaves_nothing() -> None:
    if ModelCache(cache_folder(os.environ)).find(SMOLLM2_135M) is None:
        pytest.skip("the small model is not in the cache: panal models fetch")
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "panal", "demo", "failover", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["spoke"][0] == told["killed"]
    assert len(told["spoke"]) == 2
    assert told["finish"] in ("stop", "length")
    assert told["total_s"] < 60
    print(f"demo: {told}, {time.monotonic() - begun_s:.1f} s")
    assert processes_naming("panal-demo-") == []
