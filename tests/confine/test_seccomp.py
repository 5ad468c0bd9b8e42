"""The filter on system calls, for both machines: run here by an interpreter of its instructions."""

from __future__ import annotations

import platform
import socket
import struct
from collections.abc import Iterator

import pytest

from lgov_core.confine import seccomp

KILL, REFUSED, NOT_THERE, ALLOWED = 0x80000000, 0x00050001, 0x00050026, 0x7FFF0000


@pytest.fixture(params=sorted(seccomp.MACHINES))
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    seccomp.machine.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    yield request.param
    seccomp.machine.cache_clear()


def verdict(code: bytes, number: int, *arguments: int, arch: int | None = None) -> int:
    """What the filter answers to a call."""
    data = struct.pack("<iIQ6Q", number, seccomp.machine()[0] if arch is None else arch, 0, *(*arguments, *[0] * 6)[:6])
    at, value = 0, 0
    instructions = list(struct.iter_unpack("HBBI", code))
    while True:
        operation, true, false, constant = instructions[at]
        at += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, constant)
            case 0x54:
                value &= constant
            case 0x06:
                return constant
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[operation]
                at += true if holds else false


def number(name: str) -> int | None:
    return seccomp.NUMBERS[name][seccomp.machine()[1]]


def test_what_is_denied_is_refused_and_the_rest_allowed(machine: str) -> None:
    code = seccomp.build(unix_sockets=True, observed=False)
    denied = {number(name) for name in seccomp.DENIED} - {None}
    assert {one for one in denied if verdict(code, one or 0) != REFUSED} == set()
    special = {number(name) for name in ("socket", "clone3", "openat2")}
    allowed = [one for one in range(480) if one not in denied | special]
    assert {one for one in allowed if verdict(code, one) != ALLOWED} == set()
    assert {verdict(code, number(name) or 0) for name in ("clone3", "openat2")} == {NOT_THERE}
    assert verdict(code, number("ptrace") or 0, arch=0x40000003) == KILL
    if machine == "x86_64":
        assert verdict(code, 0x40000000 + 39) == KILL


SOCKETS = [
    (socket.AF_INET, socket.SOCK_STREAM, 0, ALLOWED),
    (socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP, ALLOWED),
    (socket.AF_INET, socket.SOCK_DGRAM, 0, REFUSED),
    (socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, socket.IPPROTO_UDP, REFUSED),
    (socket.AF_INET, socket.SOCK_STREAM, 262, REFUSED),
    (socket.AF_INET, socket.SOCK_STREAM, 132, REFUSED),
    (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP, REFUSED),
    (16, socket.SOCK_RAW, 0, REFUSED),
    (40, socket.SOCK_STREAM, 0, REFUSED),
    (17, socket.SOCK_RAW, 0, REFUSED),
]


@pytest.mark.parametrize(("family", "kind", "protocol", "expected"), SOCKETS)
def test_sockets_are_tcp_and_unix_only(family: int, kind: int, protocol: int, expected: int, machine: str) -> None:
    for unix_sockets in (True, False):
        code = seccomp.build(unix_sockets=unix_sockets, observed=False)
        assert verdict(code, number("socket") or 0, family, kind, protocol) == expected
        unix = verdict(code, number("socket") or 0, socket.AF_UNIX, socket.SOCK_STREAM)
        assert unix == (ALLOWED if unix_sockets else REFUSED)


def test_arguments_decide_where_a_call_has_harmless_uses(machine: str) -> None:
    code = seccomp.build(unix_sockets=True, observed=False)
    assert verdict(code, number("clone") or 0, 0x003D0F00) == ALLOWED, "a thread"
    assert verdict(code, number("clone") or 0, 0x10000000 | 17) == REFUSED
    assert verdict(code, number("ioctl") or 0, 0, 0x5401) == ALLOWED
    assert verdict(code, number("ioctl") or 0, 0, 0x5412) == REFUSED
    for name, index in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        given = [0] * 6
        assert verdict(code, number(name) or 0, *given) == ALLOWED
        given[index] = 0x20000000
        assert verdict(code, number(name) or 0, *given) == REFUSED


SET_USER_ID, SET_GROUP_ID, O_CREAT, O_TMPFILE = 0o104755, 0o2755, 0o100, 0o20200000
MODES = [
    ("chmod", 0),
    ("fchmod", 3),
    ("fchmodat", -100, 0),
    ("fchmodat2", -100, 0),
    ("creat", 0),
    ("mknod", 0),
    ("mknodat", -100, 0),
    ("open", 0, O_CREAT),
    ("openat", -100, 0, O_CREAT),
    ("openat", -100, 0, O_TMPFILE),
]


@pytest.mark.parametrize("given", MODES)
def test_no_file_is_made_set_user_id_or_set_group_id(given: tuple[str | int, ...], machine: str) -> None:
    code = seccomp.build(unix_sockets=True, observed=False)
    name, *before = given
    before = [int(one) & 0xFFFFFFFFFFFFFFFF for one in before]
    if (called := number(str(name))) is None:
        return  # aarch64 has only the newer call
    assert {verdict(code, called, *before, mode) for mode in (SET_USER_ID, SET_GROUP_ID)} == {REFUSED}
    assert verdict(code, called, *before, 0o101755) == ALLOWED
    if str(name).startswith("open"):
        assert verdict(code, called, *before[:-1], 0, SET_USER_ID) == ALLOWED, "without creating, the mode is not read"
