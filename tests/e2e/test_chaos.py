"""Everything happens at once, and no client can tell: the invariants of the design under chaos.

``make chaos`` runs a dozen nodes for minutes; this short form runs always.
"""

import os
from pathlib import Path

import pytest

from tests.support.chaos.questions import Verdict
from tests.support.chaos.run import Plan, run_chaos
from tests.support.installation import short_folder

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))
NODES = int(os.environ.get("CHAOS_NODES", "4"))
CLIENTS = int(os.environ.get("CHAOS_CLIENTS", "6"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.mark.timeout(300 + 3 * SECONDS)
def test_no_client_can_tell_what_happened() -> None:
    with short_folder() as folder:
        after = run_chaos(Path(folder), Plan(NODES, CLIENTS, SECONDS, SEED), say=print)
    found = after.report
    print(f"\n{NODES} nodes, {CLIENTS} clients, {SECONDS:g} s, seed {SEED}; what happened: {after.mishaps}")
    print("\n".join(found.lines()))
    assert found.wrong == []
    assert found.lost == []
    assert after.left_behind == []
    assert (found.duplicated, found.missing, found.ledger_difference) == (0, [], 0)
    assert found.repeated_characters == 0
    assert found.verdicts[Verdict.EXACT] > 0
