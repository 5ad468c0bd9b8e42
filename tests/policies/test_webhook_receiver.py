"""The receiver of docs/how-to/approvals.md verifies what a rule sends, and refuses everything else."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from approval_helpers import pay

from lgov_core.policies import ApprovalPolicy
from tests.docs.page_runner import read_page

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "approvals.md"


def test_the_receiver_of_the_page_takes_signed_notices_only(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files, _ = read_page(str(PAGE))
    (tmp_path / "receiver.py").write_text(files["receiver.py"].replace("8900", str(port)))
    policy = ApprovalPolicy(store=tmp_path / ".lgov" / "approvals.db", webhook=f"http://127.0.0.1:{port}/")
    command = [sys.executable, "receiver.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as receiver:
        try:
            assert receiver.stdout is not None
            until = time.monotonic() + 30
            while time.monotonic() < until:
                with socket.socket() as tried:
                    if tried.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            policy.judge(pay())
            assert '"name": "pay"' in receiver.stdout.readline()
            for at in (str(int(time.time())), "1000"):
                headers = {"X-Lgov-Timestamp": at, "X-Lgov-Signature": "0" * 64}
                with pytest.raises(urllib.error.HTTPError, match="403"):
                    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/", b"{}", headers))
                assert receiver.stdout.readline() == "refused\n"
        finally:
            receiver.terminate()


def test_the_page_shows_a_receiver_of_a_few_lines() -> None:
    (code,) = re.findall(r"```python title=\"receiver.py\"\n(.*?)```", PAGE.read_text(), re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 13
