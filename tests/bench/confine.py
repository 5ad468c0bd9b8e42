"""What a box costs: starting a program, opening files, starting processes, and a model call, with and without one.

Run it with ``python -m tests.bench.confine``. Each row is the same program under ``lgov run`` and ``lgov run --confine``, in
turns; the best of the repeats counts. Start is from outside, in milliseconds; the others are measured in the program, in
microseconds each.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()", "run")
POLICY = "version: 1\nrules: [{use: allow}]\nconfine: {preset: workspace}\n"
PROGRAM = """
import json, os, time, urllib.request

def each(work, times):
    best = min(timed(work, times) for _ in range(3))
    return best / times * 1e6

def timed(work, times):
    began = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - began

def opened():
    os.close(os.open("file", os.O_RDONLY))

def started():
    if os.posix_spawn("/bin/true", ["true"], os.environ):
        os.wait()

def called():
    urllib.request.urlopen(os.environ["OPENAI_BASE_URL"], data=b"x" * 1000).read()

open("file", "w").close()
print(json.dumps({"open and close": each(opened, 2000), "fork and exec": each(started, 50), "model call": each(called, 100)}))
"""
#: How much more a box may take: milliseconds for the start, times for the others.
GOALS = {"start": 60.0, "open and close": 2.0, "fork and exec": 1.3, "model call": 1.3}


class _Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(0.02)  # a fast model
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, *args: object) -> None:
        pass


def once(folder: Path, endpoint: str, program: str, *options: str) -> tuple[float, str]:
    """Milliseconds that the program took from outside, and what it printed."""
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "OPENAI_BASE_URL": endpoint}
    began = time.perf_counter()
    done = subprocess.run(
        [*LGOV, *options, "--", "python", "program.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return (time.perf_counter() - began) * 1e3, done.stdout


def measure(repeats: int) -> dict[str, tuple[float, float]]:
    """By row: without a box and in one."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1"
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in GOALS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(POLICY)
        for _ in range(repeats):
            for column, options in enumerate(((), ("--confine",))):
                found["start"][column].append(once(folder, endpoint, "", *options)[0])
                for row, value in json.loads(once(folder, endpoint, PROGRAM, *options)[1]).items():
                    found[row][column].append(value)
    server.shutdown()
    return {name: (min(plain), min(boxed)) for name, (plain, boxed) in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="the figures alone")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is measured; the best counts")
    given = parser.parse_args()
    rows = measure(given.repeats)
    if given.json:
        print(json.dumps(rows))
        return 0
    print(f"{'confinement':<16} {'lgov run':>10} {'--confine':>10}   goal")
    for name, (plain, boxed) in rows.items():
        more = (
            f"+{boxed - plain:.0f} ms (<= 60)" if name == "start" else f"{boxed / plain:.2f} times (<= {GOALS[name]})"
        )
        unit = "ms" if name == "start" else "µs"
        print(f"{name:<16} {plain:>8.1f}{unit} {boxed:>8.1f}{unit}   {more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
