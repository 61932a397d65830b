"""Names of peers that nobody can resolve for a while: asked for once at a time, told once, dialed when they are known."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any, cast

import pytest

from engine.host import links as links_module
from engine.protocol import resolver as resolving
from engine.protocol.resolver import HostUnknown, Resolver
from tests.engine.host.test_pulse import transport_of, until


class _Resolver:
    """A loop's name service, which answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.create_task = asyncio.get_running_loop().create_task

    async def getaddrinfo(self, host: str, port: int | None, **_: Any) -> list[Any]:
        self.asked.append(host)
        return await asyncio.shield(self.answer)


def _resolved(*hosts: str) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 0)) for host in hosts]


async def _soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_name_is_asked_for_once_for_all_who_wait_and_who_gives_up_ends_nothing() -> None:
    async def story() -> None:
        resolver = _Resolver()
        names = Resolver(cast("asyncio.AbstractEventLoop", resolver))
        waiting = [asyncio.ensure_future(names.of("n2.example")) for _ in range(3)]
        await _soon()
        waiting.pop().cancel()
        await _soon()
        waiting.append(asyncio.ensure_future(names.of("n2.example")))
        assert await names.of("10.0.0.7") == ["10.0.0.7"], "who is an address waits for nobody"
        assert await names.of("::1") == ["::1"]
        resolver.answer.set_result(_resolved("10.0.0.1", "10.0.0.1", "10.0.0.2"))
        assert await asyncio.gather(*waiting) == [["10.0.0.1", "10.0.0.2"]] * 3
        assert resolver.asked == ["n2.example"]
        resolver.answer = asyncio.get_running_loop().create_future()
        resolver.answer.set_result(_resolved("10.0.0.9"))
        assert await names.of("n2.example") == ["10.0.0.9"], "it may lead elsewhere the next time"

    asyncio.run(story())


def test_a_name_service_that_fails_when_nobody_waits_any_more_is_nobodys_fault() -> None:
    told: list[dict[str, Any]] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        resolver = _Resolver()
        names = Resolver(cast("asyncio.AbstractEventLoop", resolver))
        waiting = asyncio.ensure_future(names.of("n2.example"))
        await _soon()
        waiting.cancel()
        resolver.answer.set_exception(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))
        await _soon()
        with pytest.raises(HostUnknown, match=r"^the name n2\.example is not known: Temporary failure in name resolution$"):
            await names.of("n2.example")
        del waiting, resolver, names
        gc.collect()

    asyncio.run(story())
    assert told == []


def test_a_peer_whose_name_is_not_known_for_a_while_is_told_of_once_and_met_when_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolving, "PATIENCE_SECONDS", 0.05)

    async def story() -> None:
        mine, peer, told = transport_of("n1", []), transport_of("n2", []), list[str]()

        class Unsteady:
            """It fails, or says nothing for a while, in turns; then it knows."""

            asked, known = 0, False
            create_task = asyncio.get_running_loop().create_task

            async def getaddrinfo(self, *_: object, **__: object) -> list[Any]:
                self.asked += 1
                if self.known:
                    return _resolved("127.0.0.1")
                if self.asked % 2:
                    await asyncio.sleep(0.08)
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

        service = Unsteady()
        mine.resolver = Resolver(cast("asyncio.AbstractEventLoop", service))
        mine.note = told.append
        _, _, port = (await peer.listen("127.0.0.1:0")).rpartition(":")
        mine.connect(f"n2.example:{port}")
        await until(lambda: service.asked > 5)
        service.known = True
        await until(lambda: "n2" in mine.links_by_node)
        assert sorted(told) == [
            f"n2.example:{port}: cannot connect: no word from the name service of n2.example within 0.05 s",
            f"n2.example:{port}: cannot connect: the name n2.example is not known: Temporary failure in name resolution",
        ]
        assert mine.address_of("n2") == f"127.0.0.1:{port}", "who wants to be heard at once asks no name service"
        await mine.close()
        await peer.close()

    asyncio.run(story())


def test_of_several_addresses_the_next_one_is_dialed_where_one_refuses_or_is_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "HELLO_SECONDS", 0.2)

    class Several(Resolver):
        async def of(self, host: str, turn: int = 0) -> list[str]:
            hosts = ["127.0.0.3", "127.0.0.2", "127.0.0.1"]  # the first refuses, the second is mute
            return hosts[turn % 3 :] + hosts[: turn % 3]

    async def story() -> None:
        mine, peer = transport_of("n1", []), transport_of("n2", [])
        mine.resolver = Several(asyncio.get_running_loop())
        _, _, port = (await peer.listen("127.0.0.1:0")).rpartition(":")
        with socket.create_server(("127.0.0.2", int(port))):  # takes connections, and nobody reads them
            mine.connect(f"n2.example:{port}")
            await until(lambda: "n2" in mine.links_by_node)
        await mine.close()
        await peer.close()

    asyncio.run(story())
