"""PathPolicy: keeps the paths that a tool is given inside some folders."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import translate
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, unquote_to_bytes

from lgov_core.errors import PolicyDenied, PolicyError
from lgov_core.governor.options import argument_names, names
from lgov_core.places import FileChange, places_for
from lgov_core.policies.base import BoundedPolicy, Unclear
from lgov_core.policies.content.secrets import SECRET_NAMES
from lgov_core.policies.content.text_views import readings
from lgov_core.policies.network.addresses import strings_in
from lgov_core.policies.options import Names, PolicyOptions, Text, Texts, takes
from lgov_core.types import Action, Decision, Point, Severity

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
#: Times a text may be percent-encoded over itself before its meaning is unclear.
MAX_DECODINGS = 4

#: Letters that look like a separator or a dot and that normalisation leaves as they are.
_LOOKALIKES = frozenset(
    "\u0337\u0338\u2044\u2215\u29f8\u29f6\u2571\u27cb\u2216\u29f5\u29f9\u2572\u27cd\u20e5\u1735\u3033\u2cc6\u2f03"
    "\u3002\ua4f8\u0701\u0702\u06d4\u2cf9\ua60e"
)
#: Kinds of invisible character: controls, formats (direction marks, zero width), lone surrogates, private use,
#: unassigned, line and paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://|(?:file|jar|data|smb|nfs|dav|gopher|php|expect|zip):", re.I)
_DRIVE = re.compile(r"[A-Za-z]:")
_STREAM = re.compile(r"::|:\$|\.[A-Za-z0-9]{1,8}:")
_VARIABLE = re.compile(r"\$[\w{(\[@*#?!$'\"-]|`|%[A-Za-z_][A-Za-z0-9_()]*%")
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.I)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_DEVICES = re.compile(r"(?:con|nul|aux|prn|conin\$|conout\$|com[0-9]|lpt[0-9])(?:\..*)?", re.I)

#: An absolute path as a URI: `RFC 8089 <https://www.rfc-editor.org/rfc/rfc8089>`_, of this machine.
_FILE_URI = re.compile(r"file:(?://(?:localhost)?)?(/(?!/)[^?#]*)", re.I | re.DOTALL)

_OR_LITERAL: Final = " (in the policy, expand: none is for a tool that opens names as they are)"

_SHORT_NAME = re.compile(r"[^.~]{1,6}~\d(?:\.[^.]{0,3})?")


def plain_path(text: str, *, literal: bool = False) -> tuple[str, ...]:
    """``text`` and what else a program may make of it (percent-encoding undone, Unicode normalised): POSIX paths, all.

    Raises `Unclear` when no such reading is beyond doubt.

    That is: no control or invisible characters, no backslash, drive, UNC share, stream, device or short name (``GIT~1``), no
    URL but the ``file:`` URI of an absolute path, no ``~``, variable, wildcard or brace to expand, no second reading when
    percent-encoding is undone or Unicode is normalised, no name that begins or ends with a space or ends with a dot.

    ``literal`` is for programs that expand nothing: ``~``, ``$``, wildcards, braces and percent signs are letters of a name
    then, as are the names of devices where the system has none, and a backslash is a letter as well as a slash.
    """
    if (uri := _FILE_URI.fullmatch(text)) is not None:
        decoded = unquote(uri[1])
        return (*plain_path(decoded, literal=literal), *plain_path(uri[1], literal=literal), text)
    _as_written(text, literal)
    if literal:
        return tuple(dict.fromkeys((text, text.replace("\\", "/"), unicodedata.normalize("NFKC", text))))
    decoded = _decoded(text)
    if decoded != text:
        if decoded.count("/") != text.count("/") or _has_dots(decoded) != _has_dots(text):
            raise Unclear("path-encoded", "Write the path without percent-encoding.")
        _as_written(decoded, literal)
    return tuple(dict.fromkeys((text, decoded, unicodedata.normalize("NFKC", decoded))))


def _as_written(text: str, literal: bool) -> None:
    if not text.strip():
        raise Unclear("path-missing", "The path is empty; write one.")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise Unclear("path-characters", "The path holds characters that are not text.") from None
    if length > MAX_PATH_BYTES:
        raise Unclear("path-too-long", f"The path is longer than {MAX_PATH_BYTES} bytes.")
    posix = literal and os.sep == "/"
    _characters(text, posix)
    if not literal:
        _expansions(text)
    for name in text.replace("\\", "/").split("/"):
        _name(name, posix)


def _characters(text: str, posix: bool) -> None:
    if any(unicodedata.category(letter) in _UNSEEN and not _joins(text, at) for at, letter in enumerate(text)):
        raise Unclear("path-characters", "The path holds control or invisible characters; leave them out.")
    if "\\" in text and not posix:
        raise Unclear("path-windows", "Write the path with forward slashes; a backslash is not accepted.")
    if _DRIVE.match(text) or text.startswith("//") or _STREAM.search(text):
        raise Unclear("path-windows", "Drives, network shares and streams are not accepted; write a POSIX path.")
    if _SCHEME.match(text):
        raise Unclear("path-url", "Write a path, not a URL.")
    normal = unicodedata.normalize("NFKC", text)
    marks = "/\\.~:$%*?"
    if _LOOKALIKES.intersection(text) or any(normal.count(mark) != text.count(mark) for mark in marks):
        raise Unclear("path-lookalike", "The path holds characters that only look like a slash or a dot.")


def _joins(text: str, at: int) -> bool:
    """Returns whether the invisible character at ``at`` is a joiner that an emoji, an Arabic or an Indic word needs."""
    if text[at] not in "\u200c\u200d" or not 0 < at < len(text) - 1:
        return False
    before, after = text[at - 1], text[at + 1]
    if unicodedata.combining(before) == 9:  # a virama: the joiner says how the letters around it are shaped
        return True
    if text[at] == "\u200d" and unicodedata.category(after) == "So":
        return (
            unicodedata.category(before) == "So" or before in "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
        )
    return all(unicodedata.bidirectional(letter) == "AL" for letter in (before, after))


def _expansions(text: str) -> None:
    if text.startswith("~"):
        raise Unclear("path-expansion", f"~ is not expanded; write the path out{_OR_LITERAL}.")
    if _VARIABLE.search(text):
        raise Unclear("path-expansion", f"Variables in a path are not expanded; write the path out{_OR_LITERAL}.")
    if "*" in text or "?" in text or _BRACES.search(text):
        raise Unclear("path-expansion", f"Wildcards are not expanded; name one file or folder{_OR_LITERAL}.")
    if _ENTITY.search(text) or re.search(r"%u[0-9a-fA-F]{4}", text):
        raise Unclear("path-encoded", "Write the path without character codes.")


def _name(name: str, posix: bool) -> None:
    if name in ("", ".", ".."):
        return
    if len(name.encode()) > MAX_NAME_BYTES:
        raise Unclear("path-too-long", f"A name in the path is longer than {MAX_NAME_BYTES} bytes.")
    if name != name.strip() or name.endswith("."):
        raise Unclear("path-characters", "A name in the path begins or ends with a space, or ends with a dot.")
    if name.startswith("..") and not name.strip(".;"):
        raise Unclear("path-characters", f"{name!r} is not a name.")
    if not posix and _DEVICES.fullmatch(name) is not None:
        raise Unclear("path-windows", f"{name!r} names a device on some systems; choose another name.")
    if "~" in name and _SHORT_NAME.fullmatch(name) is not None:  # GIT~1 is .git there
        raise Unclear("path-windows", f"{name!r} is the short name of another file on some systems; write it out.")


def _decoded(text: str) -> str:
    """``text`` with percent-encoding undone until nothing changes."""
    for _ in range(MAX_DECODINGS):
        if re.search(r"%[0-9a-fA-F]{2}", text) is None:
            return text
        try:
            text = unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            raise Unclear("path-encoded", "The percent-encoding in the path is not UTF-8.") from None
    raise Unclear("path-encoded", "The path is percent-encoded over and over.")


def _has_dots(text: str) -> int:
    return sum(name in (".", "..") for name in text.split("/"))


#: Arguments that are taken for paths when ``argument`` is not given.
PATH_ARGUMENTS = names(
    """
    path paths file files filename filenames file_name file_path file_paths filepath directory dir folder dirname
    folder_path dir_path directory_path root_dir source src source_path src_path destination dest dst destination_path
    dest_path target_path target_file input_path input_file output_path output_file old_path new_path
    """
)
#: Those that name nothing else, as ``source`` does in a cell of a notebook; and as ``path`` does in a JSON patch.
_IN_MAPPINGS = tuple(name for name in PATH_ARGUMENTS if any(word in name for word in ("file", "dir", "folder", "path")))
_LAST_WORDS = frozenset(names("path file filename filepath dir directory folder"))
_PATCH_STEPS = ("add", "remove", "replace", "move", "copy", "test")
_WORD_ENDS = re.compile(r"[_-]|(?<=[a-z0-9])(?=[A-Z])")
_IN_PATCHES = tuple(name for name in _IN_MAPPINGS if "file" in name or "dir" in name or "folder_" in name)
#: Arguments that say from which folder relative paths count.
FOLDER_ARGUMENTS = names(
    "cwd chdir working_directory working_dir workdir work_dir base_dir basedir base_directory base_path root root_path"
)
#: Names that stay closed although they lie inside a root, unless ``deny`` says otherwise: keys, credentials, history.
DENIED_NAMES = (*SECRET_NAMES, ".git")
#: Templates, public keys and certificates, which are there to be read.
_OPEN_NAMES = (
    *(".env.example", ".env.sample", ".env.template", ".env.dist", "id_*.pub"),
    *("example.env", "sample.env", "template.env", "*.example.env"),
    *("cert.pem", "*[-_]cert.pem", "ca.pem", "cacert.pem", "chain.pem", "fullchain.pem"),
)
MAX_LINKS = 40
MAX_PATHS = 1000
MAX_VALUES = 100_000
_KERNEL = ("/proc", "/dev", "/sys")


class PathOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `PathPolicy`."""

    paths = ("roots", "cwd")

    roots: Names
    argument: Names | None = None
    cwd: Text | None = None
    deny: Texts = DENIED_NAMES
    expand: Literal["any", "none"] = "any"
    name: Text = "path"


class PathPolicy(BoundedPolicy):
    """Lets a tool use only paths inside ``roots``, however a path is written.

    ``roots`` are folders; a relative one counts from the policy file's folder, in Python from the working directory. A root
    that is a symbolic link counts as its target. A root that does not exist yet is looked up again on every call. ``cwd``
    is the folder in which the tool resolves relative paths (the first root unless given): **give the tool the same one**,
    or let it open the result of `resolve`.

    ``argument`` names the arguments that hold a path or a list of paths. Unless given they have a usual name (``path``,
    ``file``, ``filename``, ``directory``, ...: `PATH_ARGUMENTS`) or end in one (``log_file``), also in mappings inside of
    arguments. Other arguments are not checked. A call without any works in the tool's folder: then ``cwd`` is checked, and
    every text as if it were a path. If an argument names the folder for relative paths (``cwd``, ``working_directory``,
    ...: `FOLDER_ARGUMENTS`), paths are checked from there as well.

    ``deny`` are globs, letter case ignored, for names that are closed inside the roots too (`DENIED_NAMES` unless given;
    ``[]`` for none). A glob with a slash is compared with the whole path below the root.

    The path is checked as written, with percent-encoding undone and Unicode normalised, with ``..`` resolved, and with
    every symbolic link followed, also below a file that does not exist yet; all of these must be inside a root. A ``file:``
    URI is the path in it. Links into ``/proc``, ``/dev`` and ``/sys``, devices, sockets and pipes are refused, and so is
    what programs read in different ways, such as Windows paths (`plain_path` lists it). ``expand: none`` is for a tool that
    opens a name unchanged: ``routes/$id.tsx``, ``~backup`` and ``src/aux.c`` are names of files then.

    What it cannot see: a link inside a root that changes between the check and the call (open with ``O_NOFOLLOW`` or
    ``openat2(RESOLVE_BENEATH)`` what `resolve` returns, or let no other program write there), a hard link to a file
    outside, a bind mount.

    Evaluates ``pre_tool_call``; has no opinion on hand-offs and agents. The number of file system calls is bounded, their
    duration is not. May be called from several threads at once. Fails closed. Raises `PolicyError` for an option without a
    meaning.
    """

    permits = True

    @takes(PathOptions)
    def __init__(self, options: PathOptions) -> None:
        self.name = name = options.name
        roots, cwd = options.roots, options.cwd
        folders = (roots,) if isinstance(roots, str) else roots
        if not folders:
            raise PolicyError(f"{name}: roots is empty", hint="name the folders that the tool may touch")
        self.roots = tuple(_folder(name, "roots", root) for root in folders)
        self.cwd = self.roots[0] if cwd is None else _folder(name, "cwd", cwd)
        self.places = places_for(self.cwd)
        self.arguments = (
            PATH_ARGUMENTS if options.argument is None else argument_names(name, options.argument, "the path")
        )
        self._named = options.argument is not None
        self._literal = options.expand == "none"
        self.denied = tuple(_folded(glob) for glob in options.deny)
        self._is_denied = _any_of(self.denied)

    def judge(self, action: Action) -> Decision | None:
        """The verdict on a tool call that carries a path; None at other points."""
        if action.point is not Point.PRE_TOOL_CALL or action.kind in ("handoff", "agent"):
            return None
        try:
            texts = [text for value in self._values(action.arguments) for text in _texts(value)]
            folders = [
                str(action.arguments[name]) for name in FOLDER_ARGUMENTS if action.arguments.get(name) is not None
            ]
            moved = [f"{folder}/{text}" for folder in folders for text in texts if not os.path.isabs(text)]
            others = {name: value for name, value in action.arguments.items() if name not in FOLDER_ARGUMENTS}
            unnamed = [] if texts else [text for _, text in strings_in(others) if text]
        except Unclear as unclear:
            return self.deny(unclear.rule, unclear.reason, Severity.MEDIUM)
        if len(texts) + len(unnamed) > MAX_PATHS:
            return self.deny("path-too-many", f"Give at most {MAX_PATHS} paths at a time.", Severity.MEDIUM)
        projects = [text for text in (*texts, *unnamed) if "pyproject" in text.casefold()]
        names_only = len(texts) == 1 and all(
            value is None or isinstance(value, int) or value == texts[0] for value in others.values()
        )
        change = _change(action.arguments, texts or projects) if projects else _NO_CHANGE if names_only else None
        if any(self._leads_away(text, change) for text in unnamed):
            names = " or ".join(self.arguments) if self._named else "path"
            return self.deny("path-missing", f"Give the path as text in the argument {names}.", Severity.MEDIUM)
        for text in (*folders, *(texts or (".",)), *moved):
            decision = self.judge_path(text, change)
            if decision.blocks:
                return decision
        if len(texts) > 1 and (reason := self._brought(texts)) is not None:
            return self.deny("path-governs", reason)
        return self.allow()

    def _brought(self, texts: Sequence[str]) -> str | None:
        """Returns why a call with several paths may not be made: one may be copied or moved to another, or into it."""
        paths = [self._place(plain_path(text, literal=self._literal)[0], _NO_CHANGE) for text in texts]
        folders = [path for path in paths if os.path.isdir(path)]
        reasons = [self.places.receives(path) for path in paths if path not in folders]
        for folder, source in product(folders, paths):
            if _inside(folder, source):  # nothing gets into itself
                continue
            below = os.listdir(source) if source in folders else ()
            moved = [source, *(os.path.join(source, name) for name in below)]
            if len(moved) * len(folders) * len(paths) > MAX_PATHS:
                return f"{source} holds too much to be looked at; copy or move a smaller folder."
            for path in moved:
                target = os.path.join(folder, os.path.basename(path))
                if target != path:
                    reasons.append(self.places.receives(target) or self.places.writes(target, FileChange(source=path)))
        return next(filter(None, reasons), None)

    def _values(self, arguments: Mapping[str, Any]) -> Iterator[Any]:
        """The values that name paths. Raises `Unclear`."""
        values = [arguments[name] for name in self.arguments if name in arguments]
        yield from (value for value in values if value is not None)  # an optional path that was left out names nothing
        if not self._named:
            yield from _within({name: value for name, value in arguments.items() if name not in self.arguments})

    def _leads_away(self, text: str, change: FileChange | None) -> bool:
        """Returns whether ``text``, which need not be a path, would be a refused one."""
        try:
            for reading in (text, text.strip().replace("\\", "/")) if self._literal else plain_path(text):
                self._place(reading, change)
        except (Unclear, OSError, ValueError):
            return True
        return False

    def judge_path(self, text: str, change: FileChange | None = None) -> Decision:
        """The verdict on one path; ``change`` is what the call may put into the file."""
        try:
            self._real(text, change)
        except Unclear as unclear:
            outside = unclear.rule in ("path-outside", "path-denied", "path-governs")
            return self.deny(unclear.rule, unclear.reason, Severity.HIGH if outside else Severity.MEDIUM)
        except OSError as error:
            what = error.strerror or type(error).__name__
            return self.deny("path-unreadable", f"The path cannot be checked: {what}.", Severity.MEDIUM)
        return self.allow()

    def resolve(self, text: str) -> Path:
        """The absolute path, free of symbolic links as of now, that ``text`` names. Raises `PolicyDenied`."""
        decision = self.judge_path(text, _NO_CHANGE)
        if decision.blocks:
            raise PolicyDenied(decision)
        return Path(self._real(text, _NO_CHANGE))

    # ------------------------------------------------------------------ one path

    def _real(self, text: str, change: FileChange | None) -> str:
        first, *others = plain_path(text, literal=self._literal)
        for other in others:  # a tool may take it for any of them
            self._place(other, change)
        return self._place(first, change)

    def _place(self, text: str, change: FileChange | None) -> str:
        whole = os.path.join(self.cwd, text)
        written = os.path.normpath(whole)
        places = [(root, _followed(root)) for root in self.roots]
        self._check_names(written, {root for alternatives in places for root in alternatives}, text)
        real = _followed(whole, watch=not any(_inside(written, kernel) for kernel in _KERNEL))
        self._check_names(real, {root for _, root in places}, text)
        if reason := self.places.writes(written, change) or self.places.writes(real, change):
            raise Unclear("path-governs", reason)
        try:
            mode = os.lstat(real).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return real
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise Unclear("path-denied", "It is a device, a socket or a pipe, not a file.")
        return real

    def _check_names(self, path: str, roots: set[str], text: str) -> None:
        holding = [root for root in roots if _inside(path, root)]
        if not holding:
            own_roots = ", ".join(self.roots[:3])
            raise Unclear("path-outside", f"{text[:80]!r} leads outside of {own_roots}; stay inside.")
        if any(_inside(path, kernel) and not _inside(root, kernel) for kernel in _KERNEL for root in holding):
            raise Unclear("path-outside", f"{text[:80]!r} leads into the kernel's own file systems.")
        below = os.path.relpath(path, max(holding, key=len))
        for name in _chain(_folded(below)):
            if self._is_denied(name) and not _is_open(name):
                raise Unclear("path-denied", f"{text[:80]!r} is closed by name; choose another file.")


_NO_CHANGE = FileChange("", appended=True)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


def _change(arguments: Mapping[str, Any], paths: Sequence[str]) -> FileChange | None:
    """Returns what a call may put into a file that it names; None where it comes from another file, or from an address.

    That are the texts of the call beside its paths, in every form that a tool may make of them.
    """
    count = 0
    texts: list[str] = []
    waiting: list[Any] = [arguments]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            values = [value for name, value in item.items() if name not in FOLDER_ARGUMENTS]
            count = max(count, sum(isinstance(value, str | os.PathLike) and str(value) in paths for value in values))
            waiting += values
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, str) and item not in paths:
            texts += [item, *(reading.text for reading in readings(item) if not reading.garbled)]
    if count > 1 or any(map(_ADDRESS.fullmatch, texts)):
        return None
    return FileChange(pieces=tuple(dict.fromkeys(texts)))


def _any_of(globs: Sequence[str]) -> Callable[[str], object]:
    """A test of a name against all of ``globs`` at once."""
    return re.compile("|".join(map(translate, globs)) or r"(?!)").match


_is_open = _any_of(_OPEN_NAMES)


def _folder(owner: str, option: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise PolicyError(f"{owner}: {option} holds {value!r}, which is not a folder", hint="write an absolute path")
    if "\0" in value or "$" in value:
        raise PolicyError(f"{owner}: {option} holds {value!r}, which is not a folder", hint="write the path out")
    absolute = os.path.abspath(os.path.expanduser(value))  # the author of a policy may write ~, the model may not
    if os.path.exists(absolute) and not os.path.isdir(absolute):
        raise PolicyError(f"{owner}: {option} holds {value!r}, which is a file", hint="name the folder it lies in")
    return absolute


def _within(value: Any) -> Iterator[Any]:
    """Yields the values under names that only files and folders have in mappings: options, or one of several edits, say."""
    waiting, looked_at = [value], 0
    while waiting:
        item, looked_at = waiting.pop(), looked_at + 1
        if looked_at > MAX_VALUES:
            raise Unclear(
                "path-too-many", f"The arguments hold more than {MAX_VALUES} values, so they were not looked at."
            )
        if isinstance(item, Mapping):
            patch = item is not value and item.get("op") in _PATCH_STEPS
            named = _IN_PATCHES if patch else _IN_MAPPINGS
            for name, inner in item.items():
                last_word = _WORD_ENDS.split(name)[-1].lower() if isinstance(name, str) else ""
                by_word = not patch and isinstance(inner, str) and last_word in _LAST_WORDS
                by_word |= last_word in ("uri", "url") and isinstance(inner, str) and inner[:5].lower() == "file:"
                if by_word or (name in named and inner is not None):
                    yield inner
                else:
                    waiting.append(inner)
        elif isinstance(item, list | tuple):
            waiting.extend(item)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple) and all(isinstance(item, str | os.PathLike | Mapping) for item in value):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping) and any(name in PATH_ARGUMENTS for name in value):  # one of several files to write
        for name in PATH_ARGUMENTS:
            if value.get(name) is not None:
                yield from _texts(value[name])
    else:
        raise Unclear("path-missing", "Give each path as text.")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().replace("\u200c", "").replace("\u200d", "")


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _chain(below: str) -> Iterator[str]:
    """Every name in a relative path, and every beginning and inner run of two names, for globs with a slash."""
    parts = below.split("/")
    yield from parts
    for end in range(2, len(parts) + 1):
        yield "/".join(parts[:end])
        yield "/".join(parts[end - 2 : end])


def _followed(path: str, *, watch: bool = False) -> str:
    """``path`` with every symbolic link replaced by what it points to, as the kernel does it: ``..`` after the link.

    ``watch`` refuses a link that passes through the kernel's file systems, where what it means depends on who looks.
    What does not exist has no links in it. Raises OSError when a folder may not be looked into.
    """
    waiting = [name for name in reversed(path.split("/")) if name not in ("", ".")]
    done = "/"
    links = 0
    while waiting:
        name = waiting.pop()
        if name == "..":
            done = os.path.dirname(done)
            continue
        here = os.path.join(done, name)
        if watch and links and here in _KERNEL:
            raise Unclear("path-outside", "A link in the path leads into the kernel's own file systems.")
        try:
            linked = stat.S_ISLNK(os.lstat(here).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            linked = False
        if not linked:
            done = here
            continue
        links += 1
        if links > MAX_LINKS:
            raise Unclear("path-outside", "The symbolic links in the path lead in circles.")
        target = os.readlink(here)
        if target.startswith("/"):
            done = "/"
        waiting.extend(name for name in reversed(target.split("/")) if name not in ("", "."))
    return done
