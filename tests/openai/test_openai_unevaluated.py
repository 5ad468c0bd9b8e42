"""Ways past: requests to a model server that no rule sees are in the report of a run, or are not sent."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lgov_core.process.requests import RequestWatch, request_lines

PROGRAM = Path(__file__).with_name("unevaluated_program.py")
#: Everything that sends more than one request.
SENT = {"a connection kept open": 3}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this machine, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    plain = serialization.NoEncryption()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        builder.sign(key, hashes.SHA256()).public_bytes(encoding) + key.private_bytes(encoding, form, plain)
    )
    return path


@dataclass
class Way:
    """A way to send requests: how many the server got, and the error that the program saw."""

    name: str
    is_evaluated: bool
    served: int
    error: str

    @property
    def sent(self) -> int:
        return SENT.get(self.name, 1)


def run(folder: Path, certificate: Path, *options: str) -> tuple[list[Way], dict[str, Any]]:
    """What became of each way, and the closing report."""
    (folder / "policy.yaml").write_text("version: 1\nrules: [{name: fine, use: allow}]\n")
    command = [sys.executable, "-m", "lgov_core", "run", "--policy", str(folder / "policy.yaml"), "--json"]
    command += ["--audit", str(folder / "audit.db"), *options, "--", "python", str(PROGRAM), str(certificate)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    report = [json.loads(line)["report"] for line in done.stderr.splitlines() if line.startswith('{"report"')]
    assert report, done.stderr
    return [Way(*json.loads(line)) for line in done.stdout.splitlines()], report[0]


def test_requests_that_no_rule_saw_are_counted(tmp_path: Path, certificate: Path) -> None:
    ways, report = run(tmp_path, certificate)
    assert len(ways) > 30
    assert {way.name: way.served for way in ways} == {way.name: way.sent for way in ways}, ways
    assert sum(report["unevaluated"].values()) == sum(way.sent for way in ways if not way.is_evaluated), report
    assert {host.partition(":")[0] for host in report["unevaluated"]} == {"127.0.0.1", "localhost"}
    assert report["unevaluated_refused"] is False


def test_requests_that_no_rule_saw_are_refused(tmp_path: Path, certificate: Path) -> None:
    ways, report = run(tmp_path, certificate, "--deny-unevaluated")
    assert {way.name: way.served for way in ways} == {way.name: int(way.is_evaluated) for way in ways}, ways
    for way in ways:
        reason = "no rule sees this request to the model server"
        assert way.is_evaluated or reason in way.error or way.name == "a fork", way
    assert report["unevaluated_refused"] is True


def test_the_report_says_it_in_words() -> None:
    lines = request_lines({"api.example.com": 3, "localhost:8000": 1}, refused=False)
    assert lines == [
        "3 requests to api.example.com were not evaluated",
        "1 request to localhost:8000 was not evaluated",
    ]
    assert request_lines({"a": 2}, refused=True) == ["2 requests to a were not evaluated, and not sent"]
    assert request_lines({f"h{n}": 1 for n in range(7)}, refused=False)[-1] == (
        "requests to 2 further hosts were not evaluated"
    )


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/v3/ours/messages", "/forms/x/responses", "/chat"])
def test_a_request_to_another_host_counts_only_by_its_path(path: str) -> None:
    watch, requests = RequestWatch(), [f"POST {path}", "GET /v1/responses/r", "POST /x//chat///completions"]
    undo = watch.install()
    try:
        with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
            for request in requests:
                with socket.create_connection(server.server_address[:2]) as connection:
                    connection.sendall(f"{request} HTTP/1.1\r\nHost: ours.example\r\n\r\n".encode())
    finally:
        undo()
    assert watch.unevaluated == {"ours.example": 2}
    assert "send" not in vars(socket.socket)
