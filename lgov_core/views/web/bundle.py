"""The page with its modules, styles and icon in one text: what an exported file begins with.

Modules are written so that they can be joined (docs/reference/window-api.md, "The exported file"): imports and exports
stand at the beginning of a statement, and nothing imports in a circle.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from pathlib import Path
from typing import Final

from lgov_core.views.web.protocol import WindowError

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
        script = _joined(static, entry)
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


def _joined(static: Path, entry: str) -> str:
    """All modules that ``entry`` needs as one script, each in a function of its own, in the order in which they run."""
    parts: dict[str, str] = {}
    _add(static, entry, parts, ())
    script = "const modules = {};\n" + "".join(parts.values())
    return script.replace("</", "<\\/").replace("<!--", "<\\!--")


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
