"""What it costs to find out which model a name stands for: ``python bench/name_cost.py``.

1,000 aliases of 50 models in one tenant. The best of seven loops counts: what others do on the machine can
only add to it. An empty call is contained in each figure and printed beside them. Nothing is asserted.
"""

import asyncio
import timeit
from collections.abc import Callable, Sequence

from panal.core.clock import SystemClock
from panal.core.ids import DEFAULT_PROJECT, DEFAULT_TENANT
from panal.core.records import AliasRecord
from panal.dispatch.fleet import Fleet
from panal.dispatch.names import ServedNames

LOOP_CALLS = 50_000
NAMES = {
    "an alias as it is written": "alias-999",
    "a model's own name": "model-7",
    "a model in other letters": " Model-7",
    "an unknown name": "nothing-of-that-name",
    "an alias with an accent": "Ñandú",
}


class KeptAliases:
    """Implements dispatch.names.NameStore."""

    async def names_revision(self) -> int:
        return 1

    async def every_alias(self) -> Sequence[AliasRecord]:
        names = [f"alias-{number}" for number in range(999)] + ["alias-999", "ñandú"]
        return [
            AliasRecord(DEFAULT_TENANT, DEFAULT_PROJECT, name, f"model-{place % 50}", 1, 1)
            for place, name in enumerate(names)
        ]


def nanoseconds(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=LOOP_CALLS, repeat=7)) / LOOP_CALLS * 1e9


def main() -> None:
    clock = SystemClock()
    fleet = Fleet(clock)
    fleet.set_models(f"model-{number}" for number in range(50))
    names = ServedNames(KeptAliases(), fleet, clock)
    asyncio.run(names.refresh())
    print(f"{'an empty call':<28} {nanoseconds(lambda: None):6.0f} ns")
    for what, name in NAMES.items():
        cost = nanoseconds(lambda name=name: names.model_of(DEFAULT_TENANT, name))  # type: ignore[misc]
        print(f"{what:<28} {cost:6.0f} ns")


if __name__ == "__main__":
    main()
