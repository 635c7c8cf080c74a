"""How a connection ends: half closed, lost, or with the server."""

from tests.logmq.world import TIGHT, Peer, World, record, slow_reads


def test_a_half_closed_client_gets_everything_it_is_owed(peer: Peer) -> None:
    peer.send(b"PRODUCE t one\nCONSUME t 0\nTOPICS\nPRODUCE t unfinished")
    peer.close_input()
    assert not peer.connection.finished
    peer.settle()
    assert peer.connection.finished
    assert peer.take() == b"OK 0\nMESSAGE 0 3 one\nTOPIC t 0 7\nEND\n"
    assert peer.world.log("t").end == 7


def test_a_half_closed_clients_waiting_fetch_is_answered(world: World) -> None:
    peer, writer = world.connect(), world.connect()
    peer.send(b"FETCH t 0 100 5000\nPING\n")
    peer.close_input()
    assert not peer.connection.finished
    writer.ask(b"PRODUCE t one\n")
    assert peer.connection.finished
    assert peer.take() == b"CHUNK 0 7 7\n" + record(b"one") + b"PONG\n"


def test_a_body_that_is_not_whole_is_not_executed(peer: Peer) -> None:
    peer.send(b"APPEND t 5\nhell")
    peer.close_input()
    peer.settle()
    assert peer.connection.finished
    assert peer.take() == b""
    assert peer.world.topics() == []


def test_a_lost_connection_leaves_nothing_behind(world: World) -> None:
    peers = [world.connect() for _ in range(5)]
    peers[0].ask(b"PRODUCE t one\n")
    log = world.log("t")
    assert peers[4].ask(b"CONSUME t 0\n") == b"MESSAGE 0 3 one\n"
    peers[0].send(b"TAIL t 0\n")
    peers[1].send(b"FETCH t 7 100 60000\nTAIL nix 0\n")
    peers[2].send(b"FETCH nix 0 100 60000\n")
    with slow_reads("t") as disk:
        peers[3].send(b"CONSUME t 0\n")
        peers[4].send(b"PRODUCE t two\nFETCH t 0 100\n")
        for peer in peers:
            peer.lose()
        world.commit()
        disk.thaw()
    assert log.watchers == set()
    assert disk.open == 0
    assert (world.broker.counts.tails, world.broker.counts.fetches_waiting) == (0, 0)
    assert len(world.broker.topics.waiters) == 0
    assert len(world.broker.windows) == 0


def drain(*peers: Peer) -> None:
    """The server stops."""
    peers[0].world.broker.draining = True
    for peer in peers:
        peer.session.drain()


def test_a_drain_answers_what_is_owed_ends_waits_and_closes(world: World) -> None:
    writer, tail, fetch, idle, begun = (world.connect() for _ in range(5))
    writer.ask(b"PRODUCE t one\n")
    tail.send(b"TAIL t 0\n")
    fetch.send(b"FETCH t 7 100 60000\nPING\n")
    begun.send(b"PRODUCE t unfin")
    writer.send(b"PRODUCE t two\n")
    drain(writer, tail, fetch, idle, begun)
    assert [peer.connection.finished for peer in (writer, tail, fetch, idle, begun)] == [
        False,
        True,
        True,
        True,
        True,
    ]
    world.commit()
    assert writer.connection.finished
    assert writer.take() == b"OK 7\n"
    assert tail.take() == b"MESSAGE 0 3 one\nOK 7\n"
    assert fetch.take() == b"EOF\nPONG\n"


def test_nothing_waits_once_the_server_drains() -> None:
    world = World(storage=TIGHT)
    peer = world.connect()
    world.congest()
    peer.send(b"PRODUCE t one\n")
    peer.session.receive(b"FETCH t 7 100 60000\nTAIL t 7\n")
    drain(peer)
    assert not peer.connection.finished
    world.commit()
    peer.settle()
    assert peer.connection.finished
    assert peer.take() == b"OK 0\nEOF\nOK 7\n"
