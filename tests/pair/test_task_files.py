"""Task files: what is read, and what is refused by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lgov_core.client import Task, read_tasks
from lgov_core.errors import TaskError


def written(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_bytes(raw)
    return path


def test_a_file_of_json_lines_is_read(tmp_path: Path) -> None:
    raw = (
        '\ufeff{"question": "What is 2+2?", "ground_truth": "4"}\r\n\n{"question": "é", "n": [1, {"a": null}]}'.encode()
    )
    tasks = read_tasks(written(tmp_path, raw))
    assert tasks == [{"question": "What is 2+2?", "ground_truth": "4"}, {"question": "é", "n": [1, {"a": None}]}]
    assert read_tasks(tasks) == tasks


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"question": "a"', "not JSON"),
        (b"[1, 2]", "a JSON list is not a task"),
        (b"3", "a JSON number is not a task"),
        (b"{}", "the object is empty"),
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": "\xff"}', "not UTF-8 (byte 8 of the line)"),
        (b"[" * 100_000, "nested too deeply"),
    ],
    ids=range(8),
)
def test_a_broken_line_is_told_with_file_and_line(tmp_path: Path, line: bytes, said: str) -> None:
    path = written(tmp_path, b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(TaskError) as caught:
        read_tasks(path)
    assert (caught.value.path, caught.value.line) == (str(path), 3)
    assert caught.value.message.startswith(f"{path}:3: ")
    assert said in caught.value.message


def test_further_broken_lines_are_told_too_and_not_without_end(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        read_tasks(written(tmp_path, b'{"a": 1}\n' + b"no\n" * 50))
    assert caught.value.line == 2
    assert caught.value.message.count("not JSON") == 10
    assert "line 11" in caught.value.message


@pytest.mark.parametrize("raw", [b"", b"\n \n"])
def test_a_file_without_tasks_is_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(TaskError, match="holds no task"):
        read_tasks(written(tmp_path, raw))


def test_what_is_no_file_and_what_is_no_list_of_mappings(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read"):
        read_tasks(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="task 1 of the list: a str is not a task"):
        read_tasks([{"a": 1}, "b"])  # type: ignore[list-item]
    with pytest.raises(TaskError, match="task 0 of the list"):
        read_tasks([{"a": float("nan")}])


def test_a_task_has_its_fields_as_attributes_and_as_keys() -> None:
    task = Task({"question": "q", "ground_truth": "4"})
    assert (task.question, task["ground_truth"], task.get("level", 1), dict(task)) == ("q", "4", 1, dict(task))
    with pytest.raises(AttributeError, match="no field 'answer': it has question, ground_truth"):
        _ = task.answer
    with pytest.raises(AttributeError, match="read only"):
        task.question = "p"
