"""Judges of build tools and of the processes and files of the machine."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, parse

#: Build, test and format tools that run what the folder says anyway: what they are given is only checked for secrets.
BUILDERS = names(
    """
    make gmake cmake ctest ninja meson bazel bazelisk gradle gradlew mvn mvnw ant sbt lein scons just task gcc
    g++ cc c++ clang clang++ clang-format clang-tidy ld ar ranlib as cpp javac jar javap kotlinc scalac rustc
    rustfmt gofmt goimports golangci-lint staticcheck pytest py.test tox nox ruff black isort mypy pyright
    flake8 pylint bandit coverage pre-commit autopep8 yapf pyflakes pycodestyle pydocstyle vulture
    sphinx-build sphinx-quickstart mkdocs jupyter eslint prettier tsc jest vitest mocha playwright cypress
    webpack rollup vite esbuild swc babel next nuxt astro ng vue nx turbo lerna stylelint biome rubocop rspec
    rake rails phpunit phpstan swiftc xcodebuild flutter dart shellcheck shfmt yamllint markdownlint hadolint
    actionlint codespell typos tslint standard xo ava tap nyc c8 protoc buf flatc dot graphviz valgrind gcov
    lcov uvicorn gunicorn flask fastapi streamlit django-admin alembic celery hugo jekyll eleventy doxygen
    cppcheck pip-compile pip-audit safety pyinstrument py-spy snakeviz mdformat stylua luacheck ktlint detekt
    spotless ghc stack cabal elixirc mix rebar3 zig nim crystal ocamlfind dune opam-lint tsx ts-node nodemon
    concurrently lint-imports deptry hatch pdm tflint tfsec checkov kubeconform kubeval helm-docs
    terraform-docs ansible-lint djlint sqlfluff sqruff taplo cspell vale cargo-nextest trunk
    sqlc swag gosec govulncheck ktfmt scalafmt swiftlint swiftformat elm-format ormolu fourmolu hlint
    """
)


#: Builders that run what they are pointed at, and options of theirs that name a place to write to.
_RUNNING = names(
    """
    make gmake just task rake pytest py.test tox nox cmake ctest gradle gradlew mvn mvnw ant sbt scons jupyter tsx ts-node
    nodemon jest vitest mocha rspec rails uvicorn gunicorn flask celery alembic streamlit webpack rollup vite playwright
    """
)
_WRITING = re.compile(
    r"--(?:basetemp|junitxml|junit-xml|cov-report|html|output-dir|output|outdir|outDir|report-log|log-file)(?:=|$)"
)


def check_programs(call: Call) -> None:
    """Refuses files and folders outside of this one for a tool that runs what it finds there."""
    before = ""
    for word in call.args:
        value = word.partition("=")[2] if word.startswith("-") else word
        value = value or re.sub(r"^-[A-Za-z](?=[/~.])", "", word)
        written = _WRITING.match(word) or _WRITING.match(before) or value.startswith(("/usr/", "/opt/", "/bin/"))
        if call.name == "cmake" and value == ".." and call.places.stands_below():
            continue  # from the build folder that the text went to
        if not written and (value.startswith("/") or ".." in value.split("/")):
            call.places.script(value)
        before = word


def _builder(call: Call) -> None:
    call.reads(call.args)
    if call.name in _RUNNING:
        check_programs(call)
    if call.name in ("make", "gmake") and any(re.match(r"--eval|-[a-zA-Z]*E|SHELL=", word) for word in call.args):
        call.refuse("rules on the command line are not allowed.")
    trying = call.args[:1] in (("-n",), ("--dry-run",), ("--just-print",))
    if call.name in ("make", "gmake", "just", "task", "rake") and not trying:
        for word in parse(call.args, "-C -f -j --directory --file").operands:
            if re.fullmatch(
                r"(?:un)?deploy.*|publish.*|release.*|destroy.*|drop.*|nuke|wipe.*|purge.*|uninstall", word
            ):
                call.refuse(f"the target {word[:40]!r} reaches beyond this folder.")
    if call.name in ("gcc", "g++", "cc", "c++", "clang", "clang++", "ld", "rustc"):
        for word in parse(call.args, "-o").of("-o"):
            call.places.write(word)
        if any(word.startswith(("-fplugin", "-wrapper", "-specs", "@", "-B")) for word in call.args):
            call.refuse("options that run programs are not allowed.")
    if call.name == "rails" and any(re.search(r"db:(?:drop|reset|purge)|runner", word) for word in call.args):
        call.refuse("this throws the database away or runs code from the command line.")
    for word in parse(call.args, "-f -C --directory --file --rootdir --basetemp").of("-C", "--directory", "--basetemp"):
        call.literal(word, "the folder")


def _java(call: Call) -> None:
    given = parse(call.args, "-jar -cp -classpath --class-path")
    if any(word.startswith(("-agent", "-javaagent", "-XX:OnError", "-XX:OnOutOfMemoryError")) for word in call.args):
        call.refuse("options that run other code are not allowed.")
    for word in given.of("-jar"):
        call.places.script(word)
    rest = list(given.operands)
    if any(re.fullmatch(r"(?:delete|remove|drop|destroy|purge|reset)(?:-\w+)*", word) for word in rest):
        call.refuse("this removes something.")
    call.reads(call.args)


def _check_cargo(call: Call, words: list[str]) -> None:
    given = parse(call.args, "--manifest-path --git --path --index --registry --root")
    if words[:1] == ["install"] and given.has("--git", "--path", "--index", "--registry", "--root"):
        call.refuse("packages come from the usual index.", "shell-network")
    for word in given.of("--manifest-path"):
        call.places.script(word)


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
        if any(re.match(r"--?(?:toolexec|exec|vettool|overlay|modfile)(?:=|$)", word) for word in call.args):
            call.refuse("options that change what is run are not allowed.")
        if call.name == "bundle" and words[:1] == ["exec"]:
            return call.runner.run(call.args[call.args.index("exec") + 1 :] or ["true"], call.given)
        if parse(call.args).has(
            "--index-url", "--registry", "-toolexec", "--toolexec", "-exec", "-ldflags-exec", "--config"
        ):
            call.refuse("options that change what is run or fetched are not allowed.")
        if words[:1] == ["run"] and any("@" in word or "://" in word for word in words[1:2]):
            call.refuse("a program from elsewhere is not run in one go.", "shell-program")
        call.reads(call.args)
        if words[:1] and words[0] in ("run", "test", "exec", "task"):
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


def _kill_by_name(call: Call) -> None:
    given = parse(call.args, "-u -U -g -G -t -P -s --signal --user")
    if given.has("-u", "-U", "-g", "-G", "-t", "-v", "--inverse", "--user", "-P", "-r", "--regexp", "-i"):
        call.refuse("end single programs by their name.")
    system = re.compile(
        r".{0,2}|.*[*\ue000-\ue002].*|\W+|.*(?:init|systemd|sshd?|cron|syslog|audit|dbus|kthread|login|bash|sh|falcon|defender|osquery|launchd|falco|wazuh|clam).*"
    )
    if not given.operands or any(system.fullmatch(word) for word in given.operands):
        call.refuse("this may end more than a program of yours.")


def _openssl(call: Call) -> None:
    if call.args[:1] and call.args[0] not in (
        "version",
        "x509",
        "dgst",
        "rand",
        "verify",
        "req",
        "ciphers",
        "asn1parse",
        "s_client",
        "help",
    ):
        call.refuse(f"{call.args[0][:20]} is not allowed here.")
    if call.args[:1] == ("s_client",) and call.given.kind == "stream":
        call.refuse("sending data is not allowed.", "shell-network")
    call.reads(call.args)
    for word in parse(call.args, "-out -keyout").of("-out", "-keyout"):
        call.places.write(word)


#: What the closed tools may be asked all the same.
_ASKING = {
    "ssh-keygen": re.compile(r"-l[vEf]* [\w./-]+\.pub"),
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
    **dict.fromkeys(BUILDERS, _builder),
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
    "openssl": _openssl,
    **dict.fromkeys(
        names(
            """
    su doas pkexec ssh scp sftp ftp tftp telnet socat mkfs fdisk parted shred shutdown reboot halt
    poweroff init useradd userdel usermod groupadd passwd chpasswd visudo chsh at batch insmod modprobe rmmod
    chroot unshare nsenter chown chgrp setfacl chattr setcap swapoff umount losetup cryptsetup wipefs gpg
    ssh-keygen ssh-add ssh-agent parallel busybox gdb script expect osascript launchctl security twine
    msfconsole nmap masscan hydra john hashcat tcpdump tshark wireshark mail sendmail mutt telinit kexec
    iptables-restore bpftool auditctl setenforce perf vi vim nvim nano emacs ed ex pico lua tclsh gnuplot R
    julia octave irb pry ipython screenlog rev-shell
    srm wipe scrub nwipe sfill blkdiscard sfdisk cfdisk gdisk sgdisk mkswap mdadm dmsetup debugfs hdparm lvremove vgremove
    pvremove deluser delgroup groupdel groupmod gpasswd vipw chage newgrp runuser setpriv systemd-run systemd-nspawn
    sshpass autossh sshfs lftp rlogin rsh rcp mosh netcat pwncat chisel ngrok cloudflared proxychains proxychains4 torify
    pwsh powershell fish tcsh csh mksh
    """
        ),
        _version_or_help,
    ),
}
