"""Task files: what is read, and what is refused by file and line."""

from __future__ import annotations

import gzip
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


ROWS = [{"question": "2+2?", "answer": "4"}, {"question": "a, b", "answer": "é"}]


@pytest.mark.parametrize("compressed", [False, True])
def test_other_kinds_of_files_are_read_too(tmp_path: Path, compressed: bool) -> None:
    pytest.importorskip("pyarrow", reason='needs the extra "train"')
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist(ROWS), tmp_path / "tasks.parquet")
    (tmp_path / "tasks.csv").write_text('question,answer\n2+2?,4\n"a, b",é\n')
    (tmp_path / "tasks.jsonl").write_text('{"question": "2+2?", "answer": "4"}\n{"question": "a, b", "answer": "é"}\n')
    for name in ("tasks.parquet", "tasks.csv", "tasks.jsonl"):
        path = tmp_path / name
        if compressed:
            path = tmp_path / f"{name}.gz"
            path.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        assert read_tasks(path) == ROWS


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("tasks.parquet", b"PAR1 and no more"),
        ("tasks.jsonl.gz", gzip.compress(b'{"a": 1}')[:-4]),
        ("tasks.csv", b'question,answer\n"open'),
        ("tasks.csv", b"question\n\xff"),
        ("tasks.csv", b"question\n"),
    ],
    ids=range(5),
)
def test_a_broken_file_of_another_kind_is_refused(tmp_path: Path, name: str, raw: bytes) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(TaskError):
        read_tasks(tmp_path / name)
