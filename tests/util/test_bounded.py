"""The bounded dictionary."""

from lgov_core._util.containers import BoundedDict


def test_the_oldest_entry_is_dropped() -> None:
    bounded: BoundedDict[str, int] = BoundedDict(2)
    bounded.put("a", 1)
    bounded.put("b", 2)
    bounded.put("a", 3)  # the newest again
    bounded.put("c", 4)
    assert "b" not in bounded
    assert (bounded.get("a"), bounded.get("c"), len(bounded)) == (3, 4, 2)


def test_pop_returns_the_value_or_none() -> None:
    bounded: BoundedDict[str, int] = BoundedDict(2)
    bounded.put("a", 1)
    assert bounded.pop("a") == 1
    assert bounded.pop("a") is None
