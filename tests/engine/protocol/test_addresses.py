"""Addresses as they are typed: a host and a port, and nothing that only looks like them."""

from __future__ import annotations

import pytest

from engine.protocol.addresses import given_address, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:7400", "127.0.0.1", 7400),
        ("localhost:0", "localhost", 0),
        ("db-3.example.org.:65535", "db-3.example.org.", 65535),
        ("my_service:7400", "my_service", 7400),
        ("[::1]:7400", "::1", 7400),
        ("::1:7400", "::1", 7400),
        ("[fe80::1%eth0]:7400", "fe80::1%eth0", 7400),
        ("b\u00fccher.example:7400", "b\u00fccher.example", 7400),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.0.0.1:", ":7400", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:7_400", "127.0.0.1:\uff17"),
        *("127.0.0.1:7400;127.0.0.1:7401", "127.0.0.1:7400 127.0.0.1:7401", "http://127.0.0.1:7400", "n1@127.0.0.1:7400"),
        *("127.0.0.1:7400\n", " 127.0.0.1:7400", "[::1:7400", "::1]:7400", "[]:7400", "a:b:7400", "127.0.0.1:0007400"),
        *("n1..example:7400", f"{'n' * 64}.example:7400", "b\u00fccher..example:7400"),
    ],
)
def test_what_only_looks_like_one_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address: expected host:port"):
        split_address(address)


@pytest.mark.parametrize("address", ["::1:7400", "::7400", "fe80::1%eth0:7400", "2001:db8::7400"])
def test_where_the_port_begins_is_not_guessed(address: str) -> None:
    with pytest.raises(ValueError, match=r"expected brackets around the host, such as \[::1\]:7400"):
        given_address(address)
    assert given_address("[::1]:7400") == ("::1", 7400)
