"""systemd-logind: who is at the machine, locked or not, what keeps the screen on, sleep and shutdown.

No name of a user, a program or a window leaves this file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from panal.core.clock import Clock
from panal.node.hardware.bus_calls import PROPERTIES, BusCalls
from panal.node.hardware.watcher import Blind
from panal.policy.signs import People

SERVICE = "org.freedesktop.login1"
MANAGER_PATH = "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
SESSION = "org.freedesktop.login1.Session"
SESSIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """``idle_s``: of the session at the machine by its own hint, 0 where it says "not idle", None where
    nobody is there. ``other``: somebody else than the agent's user is at the machine. ``remote``: a remote
    session without a terminal, whose typing cannot be seen. ``display``: X display of the agent's user."""

    people: People
    idle_s: float | None = None
    other: bool = False
    remote: bool = False
    kept_awake: bool = False
    leaving: bool = False
    display: str = ""

    def words(self) -> str:
        said = {People.NOBODY: "nobody logged in", People.LOCKED: "locked", People.HERE: "somebody logged in"}
        more = [
            word
            for holds, word in (
                (self.other, "another user at the machine"),
                (self.remote, "a remote desktop"),
                (self.kept_awake, "the screen is kept on"),
                (self.leaving, "going to sleep"),
            )
            if holds
        ]
        return ", ".join([said.get(self.people, "unknown"), *more])


class Logind:
    """A Sensor[SessionFacts]. ``user``: the agent's uid. Signals of logind lead to a look at once."""

    name = "sessions (logind)"
    each_s = 4.0

    def __init__(self, bus: BusCalls, user: int, clock: Clock) -> None:
        self._bus = bus
        self._user = user
        self._clock = clock
        self._leaving: set[str] = set()
        self.on_signal = _nothing
        """Called when logind tells of a change."""
        bus.hear(MANAGER, self._heard)
        bus.hear(PROPERTIES, lambda _member, body: self._changed(body))

    async def look(self) -> SessionFacts:
        manager = await self._bus.properties(SERVICE, MANAGER_PATH, MANAGER)
        (listed,) = await self._bus.ask(SERVICE, MANAGER_PATH, MANAGER, "ListSessions")
        sessions = []
        for _id, uid, _user, seat, path in listed[:SESSIONS_MAX]:
            try:
                found = await self._bus.properties(SERVICE, path, SESSION)
            except Blind:
                continue  # it ended between the two questions
            if found.get("Class", "user") == "user" and found.get("State") != "closing":
                sessions.append({"Seat": seat, **found, "Uid": int(uid)})
        told = [name for name in ("PreparingForSleep", "PreparingForShutdown") if manager.get(name)]
        self._leaving = set(told)
        return facts_of(sessions, await self._kept_awake(), bool(told), self._user, self._clock.utc_seconds())

    async def _kept_awake(self) -> bool:
        (inhibitors,) = await self._bus.ask(SERVICE, MANAGER_PATH, MANAGER, "ListInhibitors")
        return any("idle" in what.split(":") and mode == "block" for what, _w, _y, mode, _u, _p in inhibitors)

    @property
    def leaving(self) -> bool:
        """What the newest signal said, ahead of the next look."""
        return bool(self._leaving)

    def _heard(self, member: str, body: list[Any]) -> None:
        names = {"PrepareForSleep": "PreparingForSleep", "PrepareForShutdown": "PreparingForShutdown"}
        if member in names and body:
            (self._leaving.add if body[0] else self._leaving.discard)(names[member])
        self.on_signal()

    def _changed(self, body: list[Any]) -> None:
        if body and body[0] in (MANAGER, SESSION):
            self.on_signal()


def facts_of(
    sessions: list[dict[str, Any]], kept_awake: bool, leaving: bool, user: int, utc_s: float
) -> SessionFacts:
    """Facts from the sessions' properties as logind names them."""
    local = [one for one in sessions if not one.get("Remote") and _seated(one)]
    away = [one for one in sessions if one.get("Remote") and not one.get("TTY")]
    here = [one for one in local if one.get("Active") and not one.get("LockedHint")]
    people = People.HERE if here else People.LOCKED if local else People.NOBODY
    own = any(one["Uid"] == user for one in local)
    return SessionFacts(
        people=people,
        idle_s=min((_idle_s(one, utc_s) for one in here), default=None),
        other=own and any(one["Uid"] != user for one in here),
        remote=any(not one.get("IdleHint") for one in away),
        kept_awake=kept_awake,
        leaving=leaving,
        display=next((str(one.get("Display") or "") for one in local if one["Uid"] == user), ""),
    )


def _seated(session: Mapping[str, Any]) -> bool:
    seat = session.get("Seat")
    return bool(seat[0] if isinstance(seat, (list, tuple)) and seat else seat)


def _idle_s(session: Mapping[str, Any], utc_s: float) -> float:
    if not session.get("IdleHint"):
        return 0.0
    return max(0.0, utc_s - float(session.get("IdleSinceHint") or 0) / 1e6)


def _nothing() -> None:
    return
