"""Judges of what runs commands side by side or in terminals of their own, and of editors: tmux, GNU parallel, vim."""

from __future__ import annotations

import posixpath
import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, is_option, parse
from lgov_core.policies.shell_words import UNKNOWN

_MAKING = frozenset(names("new new-session neww new-window splitw split-window"))
_SENDING = frozenset(names("send send-keys"))
_ENDING = frozenset(names("kill-session kill-window kill-pane"))
_LOOKING = frozenset(
    names(
        """
    ls list-sessions lsw list-windows lsp list-panes lsc list-clients has has-session capturep capture-pane attach
    attach-session a at show-options info list-commands list-keys
    """
    )
)
_TMUX_VALUES = "-s -n -t -x -y -F -S -E -p -l -b"
#: Keys by their names; the first two end a line.
_ENTER = frozenset({"Enter", "C-m", "KPEnter"})
_KEYS = _ENTER | frozenset(names("C-c C-d C-z C-l C-u Up Down Left Right Escape Tab q BSpace"))


def _tmux(call: Call) -> None:
    """tmux: sessions are looked at, started with a command that is judged, sent whole lines, and ended by their names."""
    args = list(call.args)
    if any(word.endswith(";") or "#(" in word for word in args):  # further commands of tmux, and what its formats run
        call.refuse("give one command, without ; at its end and #( ) in it.")
    while len(args) > 1 and args[0] in ("-L",):  # a server of its own
        args = args[2:]
    verb, rest = "".join(args[:1]), tuple(args[1:])
    if verb in ("", "-V") and not rest:
        return
    if verb in _LOOKING:
        return call.reads(rest)
    if verb in _MAKING:
        return _made(call, rest)
    if verb in _SENDING:
        return _sent(call, rest)
    if verb in _ENDING and re.fullmatch(r"-t ?[\w.:%@-]+", " ".join(rest)):
        return
    call.refuse(f"{verb[:30]!r} is not known to only look at sessions, to start one or to end one by its name.")


def _made(call: Call, rest: tuple[str, ...]) -> None:
    words = list(rest)
    while words and is_option(words[0]):
        option = words.pop(0)
        if option == "-c" and words:
            call.places.work_in(call.literal(words.pop(0), "the folder"))
        elif option in _TMUX_VALUES.split() and words:
            words.pop(0)
        elif re.fullmatch(r"-[dPAhvbDXfIZ]+|-ds|-dn", option) is None:
            call.refuse(f"the option {option[:20]} is not allowed.")
        elif option in ("-ds", "-dn") and words:
            words.pop(0)
    if len(words) == 1:
        call.runner.script(call.literal(words[0], "the command"))
    elif words:
        call.runner.run(words, call.given)


def _sent(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-t -N")
    if any(option not in ("-t", "-l", "-R") for option in given.options):
        call.refuse("send keys by their names and lines as they are.")
    lines = [word for word in given.operands if word not in _KEYS]
    if not lines:
        return
    if len(lines) > 1 or not _ENTER.intersection(given.operands):
        call.refuse("send one whole line, with Enter behind it.", "shell-unclear")
    call.runner.script(call.literal(lines[0], "the line"))


_PARALLEL_FLAG = re.compile(
    r"-(?:j\d+%?|P\d+|n\d+|N\d+|[k0utv])|--(?:bar|eta|keep-order|null|halt=[\w,=%]+|dry-run|jobs=\d+%?|progress|verbose"
    r"|will-cite|line-buffer|no-notice|ungroup)"
)
_PARALLEL_VALUE = frozenset(names("-j --jobs -P -n -N --halt --timeout --retries --delay"))
_SLOT = re.compile(r"\{[-\d./#%+]*\}")


def _parallel(call: Call) -> None:
    """GNU parallel: a shell reads its command, with each value in quotes."""
    words = list(call.args)
    while words and is_option(words[0]):
        option = words.pop(0)
        if option in _PARALLEL_VALUE and words:
            words.pop(0)
        elif _PARALLEL_FLAG.fullmatch(option) is None:
            call.refuse(f"the option {option[:30]} is not allowed.")
    at = next((at for at, word in enumerate(words) if re.fullmatch(r":::\+?|::::\+?", word)), len(words))
    values = () if words[at : at + 1] == ["::::"] else words[at + 1 :]
    words = words[:at]
    call.reads(values)
    if not words:
        call.refuse("the commands it runs come from elsewhere; write them out.", "shell-unclear")
    text = call.literal(" ".join(words), "the command")
    if "{=" in text:
        call.refuse("code of Perl between {= and =} is not allowed.", "shell-code")
    slotted = _SLOT.search(text) is not None
    if re.fullmatch(r"[\w./{}:=,@%+# -]+", text):  # the shell makes no more of it than words
        for value in values or call.given.listed or (UNKNOWN,):
            filled = [_SLOT.sub(lambda slot, value=value: _filled(slot.group(), value), word) for word in text.split()]
            call.runner.run(filled if slotted else [*filled, value], call.given)
    else:
        call.runner.script(_SLOT.sub('"$1"', text) if slotted else f'{text} "$1"')


def _filled(slot: str, value: str) -> str:
    """What parallel puts into a slot: the value, its name, its folder, without its ending; UNKNOWN for further slots."""
    name = posixpath.basename(value)
    parts = {"{}": value, "{/}": name, "{//}": posixpath.dirname(value) or ".", "{/.}": posixpath.splitext(name)[0]}
    return {**parts, "{.}": posixpath.splitext(value)[0]}.get(slot, UNKNOWN)


def _editor(call: Call) -> None:
    """Editors open files by name; with options, addresses or commands they do more."""
    if call.given.kind != "none":
        call.refuse("what it is given to read it takes for keys.")
    for word in call.args:
        if re.fullmatch(r"\+\d*|-[Rrgndw]|--(?:wait|reuse-window|new-window|diff|goto|readonly)", word):
            continue
        if is_option(word) or word.startswith("+") or "://" in word or word == "-":
            call.refuse(f"{word[:40]!r} does more than open a file.")
        call.places.read(word)
        call.places.write(word)


TERMINAL_JUDGES: dict[str, Judge] = {
    "tmux": _tmux,
    "parallel": _parallel,
    **dict.fromkeys(names("vi vim nvim nano pico micro code"), _editor),
}
