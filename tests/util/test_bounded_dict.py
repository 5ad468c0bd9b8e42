"""BoundedDict drops what was put in longest ago."""

from __future__ import annotations

import threading

from lgov_core._util.containers import BoundedDict


def test_the_oldest_entry_is_dropped() -> None:
    found: BoundedDict[str, int] = BoundedDict(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        found.put(key, value)
    assert ("a" in found, "b" in found, len(found)) == (True, False, 2)
    assert (found.get("a"), found.get("b"), found.pop("c"), found.pop("c")) == (3, None, 4, None)


def test_threads_never_leave_more_than_the_maximum() -> None:
    found: BoundedDict[int, int] = BoundedDict(10)
    threads = [
        threading.Thread(target=lambda start=start: [found.put(key, key) for key in range(start, start + 2_000)])
        for start in range(0, 8_000, 2_000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 10
