"""One self-contained HTML file of a window: for a pull request, without a server and without a network.

The page's modules are joined into one script; they are written so that they can be (API.md, "The exported
file"): imports and exports stand at the beginning of a statement, and nothing imports in a circle.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import lgov_core
from lgov_core._util.files import atomic_write
from lgov_core.errors import LgovError, counted
from lgov_core.process.invocation import without_arguments
from lgov_core.views.governance import COLUMNS
from lgov_core.views.web import app
from lgov_core.views.web.app import STATIC, Answer
from lgov_core.views.web.protocol import Query, WindowError, json_body
from lgov_core.views.web.window import CheckedSource, Window

#: The beginning of a statement: of a line, or behind another statement in a minified file.
_START: Final = r"(?:(?<=[;}])|^)[ \t]*"
_IMPORT: Final = re.compile(
    _START
    + r"import\s*(?:([\w$]+)\s*,?\s*)?(?:\{([^}]*)\}|\*\s*as\s+([\w$]+))?\s*(?:from\s*)?[\"'](\.[^\"']+)[\"']\s*;?",
    re.M,
)
_NAMES: Final = re.compile(_START + r"export\s*\{([^}]*)\}\s*;?", re.M)
_DEFAULT: Final = re.compile(_START + r"export\s+default\s+", re.M)
_DECLARED: Final = re.compile(
    _START + r"export\s+((?:const|let|var|function\*?|async\s+function|class)\s+([\w$]+))", re.M
)
#: A comment that could be taken for code: one that stands at the beginning of a line.
_COMMENT: Final = re.compile(r"^[ \t]*/\*.*?\*/", re.M | re.S)
_LEFT: Final = re.compile(r"^(?:import|export)\b", re.M)
_SCRIPT: Final = re.compile(r'<script type="module" src="static/([^"]+)"></script>\n?')
_STYLE: Final = re.compile(r'<link rel="stylesheet" href="static/([^"]+)">\n?')
_ICON: Final = re.compile(r'href="static/([^"]+\.svg)"')


def one_page(static: Path, data: str) -> str:
    """The page in ``static`` with everything inside, and ``data`` (JSON text) where the page looks for it.

    Its policy allows this script and these styles by their hashes, and nothing else. Raises `WindowError` when the page is
    not installed whole.
    """
    try:
        page = (static / "index.html").read_text(encoding="utf-8")
        styles = "".join((static / name).read_text(encoding="utf-8") for name in _STYLE.findall(page)).replace(
            "</", "<\\/"
        )
        (entry,) = _SCRIPT.findall(page)
        modules: dict[str, str] = {}  # each in a function of its own, in the order in which they run
        _add(static, entry, modules, ())
        script = "const modules = {};\n" + "".join(modules.values())
        script = script.replace("</", "<\\/").replace("<!--", "<\\!--")
        icons = {name: base64.b64encode((static / name).read_bytes()).decode() for name in _ICON.findall(page)}
    except (OSError, ValueError) as error:
        raise WindowError(f"the page is not installed whole: {error}", hint="install lgov again") from error
    page = _ICON.sub(
        lambda match: f'href="data:image/svg+xml;base64,{icons[match[1]]}"', _STYLE.sub("", _SCRIPT.sub("", page))
    )
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(styles)}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{styles}</style>\n</head>'
    inside = data.replace("<", "\\u003c")  # so that no text in it can end the element
    tail = f'<script type="application/json" id="lgov-data">{inside}</script>\n<script type="module">{script}</script>\n</body>'
    return _replaced(_replaced(page, "</head>", head), "</body>", tail)


def _replaced(page: str, mark: str, text: str) -> str:
    before, separator, after = page.rpartition(mark)
    if not separator:
        raise WindowError(f"the page has no {mark}", hint="install lgov again")
    return before + text + after


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _add(static: Path, name: str, parts: dict[str, str], above: tuple[str, ...]) -> None:
    if name in parts:
        return
    if name in above:
        raise ValueError(f"{name} imports itself: {' > '.join((*above, name))}")
    code = (static / name).read_text(encoding="utf-8")
    code = _COMMENT.sub(lambda comment: "" if re.search(r"\b(?:import|export)\b", comment[0]) else comment[0], code)
    exported: dict[str, str] = {}

    def imported(match: re.Match[str]) -> str:
        default, names, everything, specifier = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), specifier))
        _add(static, path, parts, (*above, name))
        taken = [f"default: {default}"] if default else []
        taken += [
            ": ".join(re.split(r"\s+as\s+", name_.strip())) for name_ in (names or "").split(",") if name_.strip()
        ]
        module = f'modules["{path}"]'
        lines = [f"const {{ {', '.join(taken)} }} = {module};"] if taken else []
        return " ".join([*lines, *([f"const {everything} = {module};"] if everything else [])])

    def listed(match: re.Match[str]) -> str:
        for name_ in match[1].split(","):
            if name_.strip():
                own, _, exported_as = (word.strip() for word in name_.partition(" as "))
                exported[exported_as or own] = own
        return ""

    def declared(match: re.Match[str]) -> str:
        exported[match[2]] = match[2]
        return match[1]

    def default(match: re.Match[str]) -> str:
        exported["default"] = "exported_default"
        return "const exported_default = "

    for pattern, change in ((_IMPORT, imported), (_NAMES, listed), (_DECLARED, declared), (_DEFAULT, default)):
        code = pattern.sub(change, code)
    if (unjoined := _LEFT.search(code)) is not None:
        raise ValueError(f"{name}: {code[unjoined.start() :].partition(chr(10))[0][:80]} cannot be joined")
    result = ", ".join(f"{exported_as}: {own}" for exported_as, own in exported.items())
    parts[name] = f'modules["{name}"] = (() => {{\n"use strict";\n{code}\nreturn {{ {result} }};\n}})();\n'


#: Groups that teach something, that do not, and the newest; decisions; tokens of a call, and of all calls together.
_GROUPS: Final = (("something", 20), ("nothing", 10), ("", 20))
_DECISIONS: Final = 200
_TOKENS_OF_A_CALL: Final = 4_000
_TOKENS: Final = 200_000
#: Seconds for which an audit record and a list are waited for.
_WAIT_S: Final = 120.0
#: What a model, a tool or a user wrote: fields of these names (a reason may quote it), each with what takes its place; and
#: every text that may be long.
_CONTENT: Final = {"error": None, "ids": None, "texts": None, "rewritten": None, "reason": ""}
_TEXT: Final = frozenset({"text", "length", "ref"})


def write_report(window: Window, path: Path, *, content: bool = True, limit: int = 100) -> dict[str, Any]:
    """Writes the file: figures of all sources, and of the first one ``limit`` rollouts at most, chosen for what they show.

    ``content=False`` leaves out what models, tools and users wrote. Returns the file's size and what was chosen. Raises
    `LgovError`.
    """
    report = _Report(window, limit, content=content)
    report.add_all()
    chosen = f"{counted(len(report.rollouts), 'rollout')}, {counted(report.tokens, 'token')}"
    data = {
        "format": 1,
        "content": content,
        "made_at": time.time(),
        "version": lgov_core.__version__,
        "chosen": chosen,
        "responses": report.responses,
    }
    body = one_page(STATIC, json_body(data).decode("ascii")).encode()
    atomic_write(path, body)
    return {"path": str(path), "bytes": len(body), "chosen": chosen, "content": content}


class _Report:
    def __init__(self, window: Window, limit: int, *, content: bool) -> None:
        self._window, self._limit, self._content = window, limit, content
        self.responses: dict[str, Any] = {}
        self.rollouts: dict[tuple[str, str, int], None] = {}
        self.tokens = 0

    def add_all(self) -> None:
        """Every page. What a source does not have is left out."""
        self._add("sources", app.sources)
        self._add("runs", app.runs)
        self._add_comparisons()
        for number, opened in enumerate(self._window.sources()):
            source = opened.source.source_id
            self._add(f"runs/{_encoded(source)}", app.run, {"source": source})
            try:
                self._add_source(opened, whole=number == 0)
            except LgovError:  # as api/sources says
                continue
        for source, rollout_id, attempt in list(self.rollouts):
            self._add_rollout(source, rollout_id, attempt)

    def _add_source(self, opened: CheckedSource, *, whole: bool) -> None:
        query = {"source": opened.source.source_id}
        for by in COLUMNS:
            self._add("governance", app.governance, {**query, "by": by})
        self._add("filters", app.filters, query)
        self._add_checked("governance/audit", app.audit, query)
        self._add_checked("doctor", app.doctor, query)
        if not whole:
            return
        decisions = list(self._items(app.decisions, query, _DECISIONS))
        groups: dict[tuple[str, str], Any] = {}
        for teaches, most in _GROUPS:
            narrowed = {**query, "teaches": teaches} if teaches else query
            groups |= {(item["run_id"], item["task_id"]): item for item in self._items(app.tasks, narrowed, most)}
        self._set_list("governance/decisions", query, decisions)
        self._set_list("tasks", query, list(groups.values()))
        shares = (
            (3, [(item["rollout_id"], item["attempt"] or 1) for item in decisions if item["rollout_id"]]),
            (1, [_key(row) for group in groups.values() if not group["teaches_nothing"] for row in group["rollouts"]]),
            (1, [_key(row) for group in groups.values() for row in group["rollouts"]]),
        )
        for divisor, keys in shares:
            for key in keys[: self._limit // divisor]:
                if len(self.rollouts) < self._limit:
                    self.rollouts[query["source"], key[0], key[1]] = None
        self._set_list("rollouts", query, list(self._items(app.rollouts, query, self._limit)))
        self._set_list("agent-runs", query, list(self._items(app.agent_runs, query, self._limit)))

    def _add_comparisons(self) -> None:
        sides = self._add("compare/sides", app.sides)
        for pair in sides["pairs"][:1]:
            query = {**pair, "channel": "task"}
            try:
                comparison = self._add("compare", app.compared, query, more={"limit": str(max(self._limit // 8, 1))})
            except LgovError:
                continue
            comparison["cursor"] = None
            for item in comparison["items"]:
                names: dict[str, str] = {}
                for side in "ab":
                    row, source = item[side]["rollouts"][0], comparison[side]["source"]
                    self.rollouts[source, row["rollout_id"], row["attempt"]] = None
                    names[side] = "~".join(
                        _encoded(str(value)) for value in (source, row["rollout_id"], row["attempt"])
                    )
                self._add("compare/rollouts", app.compared_rollouts, names)

    def _add_rollout(self, source: str, rollout_id: str, attempt: int) -> None:
        path, query = f"rollouts/{_encoded(rollout_id)}", {"source": source, "attempt": str(attempt)}
        try:
            page = self._add(path, app.rollout, query, {"rollout": rollout_id}, {"count": "500"})
        except LgovError:  # deleted meanwhile
            return
        self.responses.setdefault(_path(path, {"source": source}), _path(path, query))
        for step in page["steps"]:
            count = (step["prompt_tokens"] or 0) + (step["response_tokens"] or 0)
            if step["has_tokens"] and count <= _TOKENS_OF_A_CALL and self.tokens + count <= _TOKENS:
                self.tokens += count
                params = {"rollout": rollout_id, "call": step["call"]}
                more = {"count": str(_TOKENS_OF_A_CALL)}
                self._add(f"{path}/calls/{_encoded(step['call'])}/tokens", app.tokens, query, params, more)

    # ------------------------------------------------------------------ answers

    def _add(
        self,
        path: str,
        answer: Answer,
        query: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Any:
        """Adds the answer to a path; ``more`` are parameters that its name does not have."""
        query = query or {}
        value = answer(self._window, params or query, Query({**query, **(more or {})}))
        answered = value if self._content else _without_content(value)
        named = {} if path.startswith("runs/") else query
        self.responses[_path(path, named)] = answered
        return answered

    def _add_checked(self, path: str, answer: Answer, query: Mapping[str, str]) -> None:
        until = time.monotonic() + _WAIT_S
        while self._add(path, answer, query)["state"] in ("checking", "running") and time.monotonic() < until:
            time.sleep(0.1)

    def _set_list(self, path: str, query: Mapping[str, str], items: list[Any]) -> None:
        value = {"items": items, "cursor": None}
        self.responses[_path(path, query)] = value if self._content else _without_content(value)

    def _items(self, answer: Answer, query: Mapping[str, str], most: int) -> Iterator[Any]:
        """The first items of a list."""
        cursor: str | None = ""
        remaining, until = most, time.monotonic() + _WAIT_S
        while cursor is not None and remaining > 0 and time.monotonic() < until:
            page_query = {**query, "limit": str(min(remaining, 50)), **({"cursor": cursor} if cursor else {})}
            page = answer(self._window, {}, Query(page_query))
            yield from page["items"]
            remaining, cursor = remaining - len(page["items"]), page["cursor"]


def _key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["rollout_id"], row["attempt"]


def _encoded(text: str) -> str:
    """As ``encodeURIComponent`` does."""
    return quote(text, safe="!'()*-._~")


def _path(path: str, parameters: Mapping[str, str]) -> str:
    query = "&".join(f"{name}={_encoded(parameters[name])}" for name in sorted(parameters))
    return f"{path}?{query}" if query else path


def _without_content(value: Any) -> Any:
    """``value`` with nothing for what models, tools and users wrote."""
    if isinstance(value, dict):
        fields: dict[str, Any] = value
        if fields.keys() == _TEXT:
            return None
        kept: dict[str, Any] = {
            name: _CONTENT[name] if name in _CONTENT else _without_content(item) for name, item in fields.items()
        }
        command: Any = kept.get("command")
        return kept | {"command": without_arguments(command)} if isinstance(command, list) else kept
    return [_without_content(item) for item in value] if isinstance(value, list | tuple) else value
