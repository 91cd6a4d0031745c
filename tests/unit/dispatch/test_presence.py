"""Nodes hear from each gateway that it lives and what it follows."""

from tests.support.path import Path


async def test_the_first_attempt_tells_at_once_and_then_each_second_all_are_named() -> None:
    path = await Path().start(1)
    node = path.nodes[0]
    first, _ = path.begin()
    _, run = await path.runner()
    await path.settled()
    assert [(each.attempts, each.partial) for each in node.presents] == [([], True)]
    assert (node.presents[0].gateway, node.presents[0].instance) == ("gw_1", node.instance)
    second, _ = path.begin()
    _, other = await path.runner()
    node.presents.clear()
    for _ in range(9):
        path.clock.advance(0.25)
        path.beat_all()
        await path.settled()
        path.watch.look()
    await path.settled()
    assert [(sorted(each.attempts), each.partial) for each in node.presents] == [
        (sorted([run.attempt, other.attempt]), False)
    ] * 3
    for task, attempt in ((first, run), (second, other)):
        node.finish(attempt)
        await task
    node.presents.clear()
    path.clock.advance(1.0)
    path.watch.look()
    await path.settled()
    assert node.presents == [], "who runs nothing for us hears nothing"


async def test_a_bus_that_is_away_stops_no_telling() -> None:
    path = await Path().start(1)
    task, _ = path.begin()
    node, run = await path.runner()
    path.broker.cut("gw_1")
    path.clock.advance(1.0)
    path.watch.look()
    path.broker.restore("gw_1")
    path.clock.advance(1.0)
    path.beat_all()
    path.watch.look()
    await path.settled()
    assert node.presents[-1].attempts == [run.attempt]
    node.finish(run)
    await task
