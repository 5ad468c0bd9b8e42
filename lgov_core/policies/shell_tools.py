"""Judges of the tools of languages, and of the processes and files of the machine."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_builders import BUILDER_JUDGES, check_programs
from lgov_core.policies.shell_call import Call, Judge, parse
from lgov_core.policies.shell_environment import check_assignment
from lgov_core.policies.shell_media import MEDIA_JUDGES
from lgov_core.policies.shell_terminals import TERMINAL_JUDGES


def _java(call: Call) -> None:
    given = parse(call.args, "-jar -cp -classpath --class-path -p --module-path --patch-module --upgrade-module-path")
    if call.given.kind != "none" and not call.args:
        call.refuse("what it would run comes from elsewhere; name a file of this folder.", "shell-unclear")
    if any(word.startswith(("-agent", "-javaagent", "-XX:OnError", "-XX:OnOutOfMemoryError")) for word in call.args):
        call.refuse("options that run other code are not allowed.")
    if any(word.startswith("@") or (call.name != "java" and word in ("-e", "-script")) for word in call.args):
        call.refuse("arguments and code come from the command line's own words or from a file of this folder.")
    places = [
        *given.of("-jar"),
        *(e for path in given.of("-cp", "-classpath", "--class-path", "-p", "--module-path") for e in path.split(":")),
        *(e for word in call.args if word.startswith("-Xbootclasspath") for e in word.split(":")[1:]),
    ]
    for word in (*places, *(word for word in given.operands[:1] if "/" in word)):
        if not word.startswith(("/usr/", "/opt/", "/Library/")):
            call.places.script(word)
    rest = list(given.operands)
    if any(re.fullmatch(r"(?:delete|remove|drop|destroy|purge|reset)(?:-\w+)*", word) for word in rest):
        call.refuse("this removes something.")
    call.reads(call.args)


def _check_cargo(call: Call, words: list[str]) -> None:
    given = parse(call.args, "--manifest-path --git --path --index --registry --root")
    if words[:1] in (["install"], ["add"]) and given.has("--git", "--path", "--index", "--registry", "--root"):
        call.refuse("packages come from the usual index.", "shell-network")
    for word in given.of("--manifest-path"):
        call.places.script(word)


#: Options of these tools that name a place to write to.
_WRITTEN = names(
    """
    -o --output --out-dir --target-dir --artifact-dir --results-directory --artifacts-path -coverprofile -cpuprofile
    -memprofile -blockprofile -mutexprofile -trace -outputdir --outfile
    """
)


def _check_written(call: Call) -> None:
    """Judges the places that a tool is told to write to; what lies behind ``--`` is for the program it runs."""
    args = call.args[: call.args.index("--")] if "--" in call.args else call.args
    for at, word in enumerate(args):
        option, equals, value = word.partition("=")
        if option in _WRITTEN and (equals or at + 1 < len(args)):
            call.places.write(value if equals else args[at + 1])
            if call.name == "go" and option == "-o":
                call.runner.builds(value if equals else args[at + 1], [word for word in args if word.endswith(".go")])


def _check_settings(call: Call, words: list[str]) -> None:
    """Judges settings that last: ``go env -w``, ``bundle config``."""
    if call.name == "go" and words[:1] == ["env"] and {"-w", "--w"} & set(call.args):
        for name, _, value in (word.partition("=") for word in words[1:]):
            why = check_assignment(name, [value], call.places)
            if why is not None:
                call.refuse(f"{why}.", "shell-environment")
    if call.name == "bundle" and words[:1] == ["config"] and any("://" in word for word in words):
        call.refuse("packages come from the usual index.", "shell-network")


def _check_program(call: Call, words: list[str]) -> None:
    """Refuses a program from elsewhere, and one that nobody can tell."""
    fetched = words[1:2] if words[:1] == ["run"] else words if call.name in ("deno", "dotnet", "gem") else []
    if any("://" in word or ("@" in word and words[0] == "run") for word in fetched):
        call.refuse("a program from elsewhere is not run in one go.", "shell-program")
    if call.name == "go" and words[:1] in (["run"], ["install"]):
        call.literal("".join(words[1:2]), "the program")


#: Words of any of these tools that only look.
_LOOKING = frozenset(names("list info search env version help outdated show environment"))


def _verbs_only(allowed: str) -> Judge:
    """A judge that knows a tool by the first words it may be given."""
    verbs = frozenset(allowed.split())

    def judge(call: Call) -> None:
        words = [word for word in call.args if not word.startswith(("-", "+"))]
        if call.name == "cargo" and re.fullmatch(
            r"publish(?: -p [\w-]+| --allow-dirty)* --dry-run", " ".join(call.args)
        ):
            return call.reads(call.args)
        if call.name == "cargo":
            _check_cargo(call, words)
        if words and words[0] not in verbs:
            call.refuse(f"{words[0][:40]!r} is not allowed here.")
        if words and words[0] not in _LOOKING:
            call.places.work_in()
        if not words and call.name in ("deno", "swift") and call.given.kind != "none":
            call.refuse("what it would run comes from elsewhere; name a file of this folder.", "shell-unclear")
        _check_settings(call, words)
        if any(re.match(r"--?(?:toolexec|exec|vettool|overlay|modfile)(?:=|$)", word) for word in call.args):
            call.refuse("options that change what is run are not allowed.")
        if call.name == "bundle" and words[:1] == ["exec"]:
            return call.runner.run(call.args[call.args.index("exec") + 1 :] or ["true"], call.given)
        if parse(call.args).has(
            *("--index-url", "--registry", "-toolexec", "--toolexec", "-exec", "-ldflags-exec", "--config"),
            *("--source", "--add-source", "--configfile", "--clear-sources"),
        ):
            call.refuse("options that change what is run or fetched are not allowed.")
        _check_program(call, words)
        call.reads(call.args)
        _check_written(call)
        if words[:1] and (
            words[0] in ("run", "test", "exec", "task", "generate")
            or call.name in ("dotnet", "gem", "deno", "swift", "bundle", "composer")
        ):
            check_programs(call)

    return judge


def _kill(call: Call) -> None:
    args = list(call.args)
    if args and re.fullmatch(r"-(?:s|n)", args[0]):
        args = args[2:]
    elif args and re.fullmatch(r"-(?:[A-Z]{1,9}|[1-9]|1[0-5]|0)", args[0]):
        args = args[1:]
    elif args[:1] in (["-l"], ["-L"]):
        return
    for word in args:
        if not re.fullmatch(r"[1-9]\d*|%[\w+]*|\$!", word) or word == "1":
            call.refuse("name single processes by their number.")


#: Names that are too short or too vague, or those of what runs or guards the machine.
_NOT_BY_NAME = re.compile(
    r".{0,2}|.*[*\ue000-\ue002].*|\W+|.*(?:init|systemd|sshd?|cron|syslog|audit|dbus|kthread|login|bash|sh|falcon|defender"
    r"|osquery|launchd|falco|wazuh|clam).*"
)


def _kill_by_name(call: Call) -> None:
    given = parse(call.args, "-u -U -g -G -t -P -s --signal --user")
    if given.has("-u", "-U", "-g", "-G", "-t", "-v", "--inverse", "--user", "-P", "-r", "--regexp", "-i"):
        call.refuse("end single programs by their name.")
    if not given.operands or any(_NOT_BY_NAME.fullmatch(word) for word in given.operands):
        call.refuse("this may end more than a program of yours.")


_OPENSSL = frozenset(names("version x509 dgst rand verify req ciphers asn1parse s_client help"))


def _openssl(call: Call) -> None:
    if call.args[:1] and call.args[0] not in _OPENSSL:
        call.refuse(f"{call.args[0][:20]} is not allowed here.")
    if call.args[:1] == ("s_client",) and call.given.kind == "stream":
        call.refuse("sending data is not allowed.", "shell-network")
    given = parse(
        call.args, "-out -keyout -writerand -engine -config -provider-path -keylogfile -sess_out -CAserial -msgfile"
    )
    for word in given.of("-out", "-writerand", "-keylogfile", "-sess_out", "-CAserial", "-msgfile"):
        call.places.write(word)
    for word in given.of("-engine", "-config", "-provider-path"):  # they load code
        if "/" in word:
            call.places.script(word)
    for word in given.of("-keyout"):  # a new key may be called like one
        call.places.write(word, may_be_secret=True)
    call.reads(word for word in call.args if word not in given.of("-keyout"))


#: What a debugger may be told to do: run the program, stop it, and show where it stands.
_DEBUGGING = re.compile(
    r"r|run|start|c|continue|q|quit|n|next|s|step|finish|up|down|disassemble|starti"
    r"|(?:bt|backtrace|where)(?: full)?(?: -?\d+)?"
    r"|info (?:locals|args|registers|threads|frame|sharedlibrary|signals|breakpoints|line|source)(?: [\w:.]+)?"
    r"|thread (?:apply all (?:bt|backtrace)(?: full)?|\d+)|(?:f|frame) \d+|(?:l|list)(?: [\w:.,]+)?"
    r"|(?:b|break|tb|tbreak) [\w:.]+"
    r"|set (?:pagination|confirm|width|height|print pretty) \w+|x/\d*[a-z]+ \$\w+|catch (?:throw|catch)"
)


def _debugger(call: Call) -> None:
    """Judges gdb without a prompt: commands that show, on a program of this folder and what it left when it fell."""
    if call.given.kind != "none" and not {"-batch", "--batch"} & set(call.args):
        call.refuse("its commands come from elsewhere; use -batch and -ex.", "shell-unclear")
    args = list(call.args)
    inner: list[str] = []
    if "--args" in args:
        inner = args[args.index("--args") + 1 :]
        args = args[: args.index("--args")]
    while args and args[0].startswith("-"):
        option = args.pop(0)
        if option in ("-ex", "--ex", "-eval-command", "--eval-command") and args:
            if _DEBUGGING.fullmatch(args.pop(0).strip()) is None:
                call.refuse("of its commands only those that run the program and show where it stands are allowed.")
        elif option not in ("-batch", "--batch", "-q", "-quiet", "-nx", "-n", "--nx", "--version", "--help"):
            call.refuse(f"the option {option[:30]} is not known to only look.", "shell-unknown-command")
    if inner:
        call.runner.run(inner, call.given)
    for program in args[:1]:
        call.places.script(program)
    if any(word.isdigit() for word in args):
        call.refuse("watching other processes is not allowed.")
    call.reads(args)


def _libraries(call: Call) -> None:
    """Judges ldd, which may start the program that it is asked about."""
    for word in call.parsed().operands:
        if not word.startswith(("/usr/", "/bin/", "/lib", "/opt/", "/sbin/")):
            call.places.script(word)
    call.reads(call.args)


#: What the closed tools may be asked all the same.
_ASKING = {
    "ssh-keygen": re.compile(r"-l[vEf]* (?:-f )?[\w./-]+\.pub"),
    "ssh-add": re.compile(r"-[lL]"),
    "fdisk": re.compile(r"-l"),
    "parted": re.compile(r"-l"),
    "gpg": re.compile(r"--verify [\w./-]+(?: [\w./-]+)?|--list-keys|-k"),
    "visudo": re.compile(r"-c"),
}


def _version_or_help(call: Call) -> None:
    """Tools that are known and closed, but may say which they are."""
    asking = _ASKING.get(call.name)
    if asking is not None and asking.fullmatch(" ".join(call.args)):
        return call.reads(call.args)
    if not call.args or any(word not in ("--version", "--help", "-h", "-V", "version", "help") for word in call.args):
        call.refuse("it reaches beyond this folder, or changes the machine.")
    return None


_CARGO = (
    "build check test run clippy fmt bench doc tree metadata search init new add update fetch clean version "
    "help nextest expand fix audit outdated b c t r miri llvm-cov deny machete udeps hack remove package install"
)
_GO = "build test run vet fmt mod list version env doc generate get clean install tool work help"
TOOL_JUDGES: dict[str, Judge] = {
    **BUILDER_JUDGES,
    **dict.fromkeys(("pkill", "killall"), _kill_by_name),
    **dict.fromkeys(("java", "kotlin", "scala"), _java),
    "cargo": _verbs_only(_CARGO),
    "go": _verbs_only(_GO),
    "dotnet": _verbs_only("build test run restore clean format new list add watch help --version"),
    "swift": _verbs_only("build test run package format"),
    "deno": _verbs_only("test fmt lint check task doc info bench cache"),
    "bundle": _verbs_only("install exec check list show outdated info add config"),
    "gem": _verbs_only("list install search info environment outdated help"),
    "composer": _verbs_only("install update show validate require dump-autoload test run outdated check-platform-reqs"),
    "corepack": _verbs_only("enable prepare"),
    "tig": _verbs_only(""),
    "trivy": _verbs_only("fs image config repo sbom version"),
    "kill": _kill,
    "gdb": _debugger,
    "ldd": _libraries,
    **MEDIA_JUDGES,
    **TERMINAL_JUDGES,
    "openssl": _openssl,
    **dict.fromkeys(
        names(
            """
    su doas pkexec ssh scp sftp ftp tftp telnet socat mkfs fdisk parted shred shutdown reboot halt
    poweroff init useradd userdel usermod groupadd passwd chpasswd visudo chsh at batch insmod modprobe rmmod
    chroot unshare nsenter chown chgrp setfacl chattr setcap swapoff umount losetup cryptsetup wipefs gpg
    ssh-keygen ssh-add ssh-agent busybox script expect osascript launchctl security twine
    msfconsole nmap masscan hydra john hashcat tcpdump tshark wireshark mail sendmail mutt telinit kexec
    iptables-restore bpftool auditctl setenforce perf emacs ed ex tclsh gnuplot R
    octave irb pry ipython screenlog rev-shell
    srm wipe scrub nwipe sfill blkdiscard sfdisk cfdisk gdisk sgdisk mkswap mdadm dmsetup debugfs hdparm lvremove vgremove
    pvremove deluser delgroup groupdel groupmod gpasswd vipw chage newgrp runuser setpriv systemd-run systemd-nspawn
    sshpass autossh sshfs lftp rlogin rsh rcp mosh netcat pwncat chisel ngrok cloudflared proxychains proxychains4 torify
    pwsh powershell fish tcsh csh mksh
    """
        ),
        _version_or_help,
    ),
}
