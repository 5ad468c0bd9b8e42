"""Judges of the commands that look at, make, copy and remove files."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, is_option, wild
from lgov_core.policies.shell_environment import check_assignment
from lgov_core.policies.shell_words import UNKNOWN

#: Commands that only read, whatever they are given; files with secrets are refused by name.
READERS = names(
    """
    dir cat head tail wc cut tr nl tac rev paste join comm diff3 sdiff cmp fold fmt column expand
    unexpand od hexdump strings file du df realpath readlink basename dirname pwd true false : cal
    uptime uname whoami id groups arch nproc free lscpu lsblk lsof ps pgrep pidof top htop vmstat iostat which
    type whereis bc expr factor seq md5sum
    sha1sum sha224sum sha256sum sha384sum sha512sum cksum b2sum sum shasum md5 base64 base32 iconv numfmt
    sleep wait jobs fg bg exit return break continue shift umask ulimit times dirs popd getopts tput clear
    reset locale localectl tty who w last users zcat bzcat xzcat zless zdiff cloc tokei scc exa eza lsd
    pstree printenv nm objdump readelf size tsort yes look shuf wdiff delta glow mdcat
    xmllint getconf ss netstat dmesg let disown logname hostid cd pushd
    local ptx lsmod lspci lsusb hexyl sar mpstat pidstat findmnt blkid lvs vgs pvs vgdisplay
    lvdisplay pvdisplay sw_vers lsns getfacl getfattr lsattr numastat ncal rpm2cpio zipinfo jless difft
    xsv csvlook csvstat csvcut csvgrep csvsort csvjoin csvstack csvjson csvformat uuidgen deactivate xcbeautify xcpretty
    """
)
#: Of these: options that name a file to write, and options that run or load something or change the machine.
_READERS_WRITE = {
    **dict.fromkeys(("sdiff", "iconv", "shuf", "xmllint", "base64", "base32", "scc", "sar", "xsv"), "-o --output"),
    "cloc": "--out --report-file",
}
_READERS_CLOSED = {
    **dict.fromkeys(("diff3", "sdiff"), "--diff-program"),
    **dict.fromkeys(("nm", "objdump", "size"), "--plugin"),
    "delta": "--pager --paging",
    "xmllint": "--shell",
    "dmesg": "-C -c --clear --console-off --console-on -D -E -n --console-level",
    "ss": "-K --kill -D --diag",
}
_COPY_VALUES = "-t --target-directory -S --suffix -m --mode -o --owner -g --group"


def _reader(call: Call) -> None:
    call.reads(call.args)
    if call.parsed().has(*_READERS_CLOSED.get(call.name, "").split()):
        call.refuse("options that run something or change the machine are not allowed.")
    written = _READERS_WRITE.get(call.name, "")
    for word in call.parsed(written).of(*written.split()):
        call.places.write(word)


def _diff(call: Call) -> None:
    call.reads(call.args)
    given = call.parsed("-x -X -I -F -U -C -W --exclude --exclude-from")
    if given.has("-r", "--recursive"):
        for word in given.operands:
            call.places.read_tree(word)


def _rewrites(call: Call) -> None:
    """Tools that change the files they are given, or read the first and write the second."""
    call.reads(call.args)
    operands = call.parsed("-f -l -r -x -y -W -H -enc -layout").operands
    for word in operands[1:] if call.name == "pdftotext" else operands:
        call.places.write(word)


def _asks(_: Call) -> None:
    """Asks whether a file is there, and of what kind."""


def _lists(call: Call) -> None:
    """Shows names, sizes and dates: those of this folder's own files, whatever they are called."""
    call.reads(word for word in call.args if is_option(word) or not call.places.holds(word))


def _keeps_commands(call: Call) -> None:
    if any(is_option(word) and "p" in word for word in call.args):
        call.refuse("commands stay where they are found.")


def _fills(call: Call) -> None:
    """Builtins that put what they read into variables: none of those that others go by."""
    given = call.parsed("-p -t -n -N -d -i -u -a -O -s -c -C")
    if call.name in ("mapfile", "readarray") and given.has("-C"):
        call.refuse("running a command on each line is not allowed.")
    for name in (*given.operands, *given.of("-a")):
        why = check_assignment(name, ["/tmp"], call.places)
        if why is not None:
            call.refuse(f"{why}.", "shell-environment")
    call.reads(call.args)


def _mktemp(call: Call) -> None:
    given = call.parsed("-p --tmpdir --suffix")
    for word in (*given.of("-p", "--tmpdir"), *(word for word in given.operands if "/" in word)):
        call.places.write(word)


def _ps(call: Call) -> None:
    if call.args and re.fullmatch(r"[A-Za-z]*e[A-Za-z]*", call.args[0]):
        call.refuse("e shows the environment of other programs.", "shell-secret")
    call.reads(call.args)


#: Options of pagers that run a program or write or load a file.
_PAGER_CLOSED = names("-P --pager -H --html -k -o -O --log-file -C --config-file -K --lesskey-file")


def _pager(call: Call) -> None:
    """Pagers and the manual: no commands for them to run."""
    if call.name == "man" and call.args[:2] == ("-P", "cat") and not any(is_option(word) for word in call.args[2:]):
        return call.reads(call.args[2:])
    if call.parsed().has(*_PAGER_CLOSED) or any(word.startswith("+") for word in call.args):
        call.refuse("options that run programs or write files are not allowed.")
    call.reads(call.args)


def _history(call: Call) -> None:
    if any(not re.fullmatch(r"\d+", word) for word in call.args):
        call.refuse("the history stays as it is.")


def _tree(call: Call) -> None:
    given = call.parsed("-L -I -P -o -H -T --charset --filelimit --sort")
    for word in given.of("-o"):
        call.places.write(word)
    call.reads(given.operands)


def _echo(call: Call) -> None:
    if call.name == "printf" and any(word.startswith("-v") for word in call.args[:1]):
        return _fills(Call("printf", tuple(word for word in call.parsed("-v").of("-v")), call.given, call.runner))
    for word in call.args:
        if re.fullmatch(r"/dev/(tcp|udp)/.*", word):
            call.refuse("a network connection through /dev/tcp is not allowed.", "shell-network")


def _rm(call: Call) -> None:
    given = call.parsed()
    if given.has("--no-preserve-root"):
        call.refuse("the root folder stays.")
    recursive = given.has("-r", "-R", "--recursive")
    if recursive and not given.operands:
        call.refuse("name what is removed.", "shell-unclear")
    for word in given.operands:
        call.places.delete(word, recursive=recursive)


def _writes_operands(call: Call) -> None:
    for word in call.parsed("-m --mode -d -t -r --date --reference -s --size").operands:
        call.places.write(word)


def _touch(call: Call) -> None:
    given = call.parsed("-d -t -r --date --reference -m --mode")
    for word in given.operands:
        call.places.write(word, may_be_secret=True)


def _copy(call: Call) -> None:
    given = call.parsed(_COPY_VALUES)
    folders = given.of("-t", "--target-directory")
    sources = given.operands if folders else given.operands[:-1]
    targets = folders or list(given.operands[-1:])
    if len(given.operands) + len(folders) < 2 and UNKNOWN not in "".join(call.args):  # which may be several words
        return
    if call.name == "install" and given.has("-o", "--owner", "-g", "--group", "--strip-program"):
        call.refuse("changing owners and running a program are not allowed.")
    for mode in given.of("-m", "--mode") if call.name == "install" else []:
        _check_mode(call, mode)
    if given.has("-r", "-R", "-a", "--recursive", "--archive"):
        for word in sources:
            call.places.read_tree(word)
    for word in sources:
        call.places.read(word)
        if call.name == "mv":
            if word in (".", "..", "/", "*") or not re.sub(r"[\W_]", "", word.replace("\ue001", "")):
                call.refuse("name what is moved.", "shell-unclear")
            call.places.move(word)
        elif word == "/dev/null":
            call.refuse("emptying files this way is not allowed.")
    for word in targets:
        if call.name == "mv" and word.startswith("/dev/"):
            call.refuse("moving files into a device destroys them.")
        call.places.write(word, may_be_secret=call.name == "cp")


def _link(call: Call) -> None:
    given = call.parsed(_COPY_VALUES)
    for word in given.operands:
        call.places.read(word)
        if word.startswith("/") or ".." in word.split("/") or len(given.operands) == 1:
            call.places.write(word)
    for word in (*given.operands[-1:], *given.of("-t", "--target-directory")):
        call.places.write(word)


def _writes_all(call: Call) -> None:
    for word in call.parsed().operands:
        call.places.write(word)


def _check_mode(call: Call, mode: str) -> None:
    if (
        re.fullmatch(r"0*[1-7][0-7]{3}|[0-7]?[0-7][0-7][2367]", mode)
        or "s" in mode
        or re.search(r"(?:^|,)[^oa,]*+[oa][^+=,]*+[+=][^w,]*+w", mode)
    ):
        call.refuse(f"the mode {mode} lets others write or run as the owner.")


def _chmod(call: Call) -> None:
    given = call.parsed()
    modes = [word for word in call.args if re.fullmatch(r"[-+=]?[ugoarwxXst,+=-]+|[0-7]{1,5}", word)]
    if given.has("-R", "--recursive", "--reference"):
        call.refuse("changing the rights of a whole tree is not allowed; name single files.")
    for mode in modes:
        _check_mode(call, mode)
    for word in given.operands:
        if word not in modes:
            call.places.write(word)


def _dd(call: Call) -> None:
    for word in call.args:
        key, _, value = word.partition("=")
        if key == "of":
            if value.startswith("/dev/") and value != "/dev/null":
                call.refuse("writing to a device destroys what is on it.")
            call.places.write(value)
        elif key == "if":
            call.places.read(value)
        elif wild(word):
            call.refuse("write its operands out.", "shell-unclear")
    if not any(word.startswith("count=") for word in call.args):
        call.refuse("without count= it may fill the disk.")


def _date(call: Call) -> None:
    given = call.parsed("-d --date -r -f --file --reference -I")
    if given.has("-s", "--set") or any(not word.startswith("+") for word in given.operands):
        call.refuse("the clock stays as it is.")
    call.reads(call.args)


def _hostname(call: Call) -> None:
    if call.parsed().operands:
        call.refuse("the host's name stays as it is.")


def _javap(call: Call) -> None:
    if any(word.startswith("-J") for word in call.args):
        call.refuse("options of the Java machine are not allowed.")
    call.reads(call.args)


FILE_JUDGES: dict[str, Judge] = {
    "javap": _javap,
    **dict.fromkeys(READERS, _reader),
    **dict.fromkeys(("diff", "colordiff"), _diff),
    **dict.fromkeys(("dos2unix", "unix2dos", "pdftotext"), _rewrites),
    **dict.fromkeys(("test", "["), _asks),
    **dict.fromkeys(("ls", "stat"), _lists),
    **dict.fromkeys(("read", "mapfile", "readarray"), _fills),
    "hash": _keeps_commands,
    "mktemp": _mktemp,
    "ps": _ps,
    **dict.fromkeys(("echo", "printf"), _echo),
    **dict.fromkeys(("mkdir", "truncate", "mkfifo"), _writes_operands),
    **dict.fromkeys(("cp", "mv", "install"), _copy),
    **dict.fromkeys(("man", "info", "apropos", "help", "less", "more", "bat", "batcat"), _pager),
    "history": _history,
    "tree": _tree,
    "touch": _touch,
    "rm": _rm,
    "unlink": _rm,
    **dict.fromkeys(("rmdir", "tee"), _writes_all),
    "ln": _link,
    "chmod": _chmod,
    "dd": _dd,
    "date": _date,
    "hostname": _hostname,
}
