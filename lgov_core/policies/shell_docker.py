"""Judges of docker and its likes: containers may be looked at, built and run as long as they stay away from this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, parse, wild
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_words import UNKNOWN

#: Commands that only look, or do what ``build``, ``start`` and ``pull`` do.
_LOOKING = frozenset(
    names(
        """
    ps images logs inspect stats top version info search port diff history pull start stop restart events tag wait
    """
    )
)
#: Groups of commands, and what may be done with each.
_GROUPS = frozenset(names("container image network volume context system builder buildx"))
_GROUP_LOOKING = frozenset(names("ls list inspect logs df info events show history top stats ps version")) | {""}
_COMPOSE_VERBS = frozenset(
    names("up down ps logs build pull config start stop restart exec run top events images port version ls")
) | {""}
#: Options of the client ahead of its command that take a value; those of ``_DAEMON`` lead to another daemon.
_DAEMON = frozenset(names("-H --host --config --context -c --tlscacert --tlscert --tlskey"))
_GLOBAL_VALUES = frozenset(names("-l --log-level"))
_COMPOSE_VALUES = frozenset(
    names("-f --file -p --project-name --profile --env-file --project-directory --parallel --ansi --progress")
)
_RUN_VALUES = """
    -v --volume --mount -p --publish -e --env --name --network --net -w --workdir -u --user --entrypoint --pid --ipc
    --uts --userns --cap-add --cap-drop --device --security-opt --env-file -l --label -m --memory --cpus --restart
    --platform --add-host --volumes-from --gpus -h --hostname --runtime --sysctl --cgroupns --cgroup-parent
    --device-cgroup-rule --volume-driver --index --tmpfs --shm-size --ulimit --pull --stop-signal --health-cmd
    --log-driver --log-opt --storage-opt --network-alias --net-alias --ip --ip6 --mac-address --group-add --annotation
    --link --expose --dns --dns-search --dns-option --domainname --isolation --label-file --cidfile --pidfile -a
    --attach --blkio-weight --cpu-shares --cpuset-cpus --cpuset-mems --cpu-period --cpu-quota --memory-swap
    --memory-reservation --memory-swappiness --pids-limit --oom-score-adj --stop-timeout --detach-keys --health-interval
    --health-retries --health-timeout --health-start-period --pod
"""
#: Options without a value. The word behind an option that is not known may be its value, and the image another one.
_RUN_FLAGS = re.compile(
    r"-[itdPqT]+|-[itd]*[pvewu].*|--(?:rm|init|interactive|tty|detach|read-only|publish-all|privileged|quiet|no-healthcheck"
    r"|sig-proxy|disable-content-trust|oom-kill-disable|replace|no-deps|service-ports|build|use-aliases|no-TTY|quiet-pull"
    r"|remove-orphans|rmi|no-hosts|no-hostname|env-host)|--[\w-]+=.*"
)
#: Options with which a container reaches into the machine.
_REACHING = frozenset(
    names(
        """
    --privileged --cap-add --device --device-cgroup-rule --security-opt --volumes-from --userns --env-file --cgroup-parent
    --cgroupns --runtime --sysctl --volume-driver --oom-kill-disable
    """
    )
)
_BUILD_VALUES = (
    "-f --file -t --tag -o --output --target --platform --build-arg --label --cache-from --cache-to --secret --ssh --allow "
    "--network --progress --iidfile --metadata-file --add-host --build-context --builder --attest --pull"
)


#: What may be done in place of a command.
_INSTEAD = {"rm": ": stop containers and remove them by their names, without options"}


def _docker(call: Call) -> None:
    words = list(call.args)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        name, equals, _ = option.partition("=")
        if name in _DAEMON or re.match(r"-[Hc].", option):
            call.refuse("another daemon is not allowed.")
        if name in _GLOBAL_VALUES and not equals and words:
            words.pop(0)
    verb, rest = (words or [""])[0], tuple(words[1:])
    if verb == "compose":
        _compose(call, rest)
    elif verb in _GROUPS:
        _group(call, verb, rest)
    elif verb in ("run", "create", "exec"):
        _container(call, rest, verb)
    elif verb == "build":
        _build(call, rest)
    elif verb == "cp":
        _copied(call, rest)
    elif verb == "save":
        for word in parse(rest, "-o --output --platform").of("-o", "--output"):
            call.places.write(word)
    elif verb and verb not in _LOOKING and not (verb == "rm" and _names_stopped(rest)):
        call.refuse(f"{verb[:20]} is not allowed here{_INSTEAD.get(verb, '')}.")
    else:
        call.reads(rest)


def _names_stopped(rest: Sequence[str]) -> bool:
    """Whether ``docker rm`` is given names alone: without options it removes no container that runs, and no volume."""
    return bool(rest) and all(re.fullmatch(r"\w[\w.-]*", word) for word in rest)


def _group(call: Call, group: str, rest: tuple[str, ...]) -> None:
    verb = (rest or ("",))[0]
    plain = verb == "create" and not any(re.match(r"--?(?:o|d)", word) for word in rest)
    if group in ("network", "volume") and plain:  # without a driver or options that reach into the machine
        return
    if verb == "build":
        _build(call, rest[1:])
    elif verb not in _GROUP_LOOKING:
        call.refuse(f"{group} {verb[:20]} is not allowed here.")


def _build(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, _BUILD_VALUES)
    if any("://" in word or word.startswith("git@") for word in given.operands):
        call.refuse("build from a folder.", "shell-network")
    if given.has("--push", "--allow", "--ssh") or "host" in given.of("--network"):
        call.refuse("the build may not send the image away, or reach into this machine.")
    call.reads(rest)
    for source in given.of("--secret"):
        call.reads(re.findall(r"(?:src|source)=([^,]*)", source))
    for context in given.operands:
        call.places.read_tree(context)
    for output in given.of("-o", "--output", "--cache-to"):
        if re.search(r"type=(?:registry|s3|azblob|gha)|push=", output):
            call.refuse("the image stays on this machine.", "shell-network")
        for word in re.findall(r"dest=([^,]*)", output) or ([output] if "=" not in output else []):
            call.places.write(word)
    for word in given.of("--iidfile", "--metadata-file"):
        call.places.write(word)


def _copied(call: Call, rest: tuple[str, ...]) -> None:
    """``docker cp``: out of a container, to where the text may write."""
    operands = parse(rest).operands
    if len(operands) != 2 or not re.match(r"[\w.-]+:", operands[0]) or ":" in operands[1]:
        call.refuse("copy out of a container into this folder.")
    call.reads(operands)
    call.places.write(operands[1])


def _container(call: Call, rest: Sequence[str], verb: str, *, service: bool = False) -> None:
    """Judges ``run``, ``create`` and ``exec``: what is mounted, what is shared with the machine, and the inner command.

    What runs in a container that is there, in a service of compose, or beside a folder of this machine is judged as if it
    ran here; an image's own program, of which nothing is known, passes.
    """
    ahead, own = _ahead_of_image(call, rest)
    if verb != "exec" and own[:1] and own[0].startswith(UNKNOWN):  # it may be options
        call.literal(own[0], "the image")
    given = parse(ahead, _RUN_VALUES)
    for written in given.of("--cidfile", "--pidfile"):
        call.places.write(written)
    if not _REACHING.isdisjoint(given.options) or any(
        "host" in value for value in given.of("--pid", "--net", "--network", "--ipc", "--uts")
    ):
        call.refuse("the container may not reach into this machine.")
    folders = [value.removeprefix("=").partition(":")[0] for value in given.of("-v", "--volume")]
    for mount in given.of("--mount"):
        if "volume-opt" in mount.lower() or "volume-driver" in mount.lower():
            call.refuse("this mount reaches into the machine.")
        folders += re.findall(r"(?:source|src)=([^,]*)", mount, re.I)
    _check_mounts(call, folders)
    inner = [*given.of("--entrypoint"), *own[1:]]
    if not inner:
        return
    if verb == "exec" or service:
        call.runner.run(inner, call.given)
    elif any(re.match(r"[/.]", folder) for folder in folders):
        try:
            call.runner.run(inner, call.given)
        except Refused as refused:
            if refused.rule != "shell-unknown-command":  # a program, or an argument of one, that only the image knows
                raise


def _ahead_of_image(call: Call, rest: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of ``run``, ``create`` and ``exec``, and what stands behind them. Raises `Refused` for unknown ones."""
    values = frozenset(_RUN_VALUES.split())
    own, ahead = list(rest), list[str]()
    while own and own[0].startswith("-") and own[0] != "--":
        word = own.pop(0)
        ahead.append(word)
        clustered = len(word) > 2 and word[1] != "-" and f"-{word[-1]}" in values
        if "=" not in word and (word in values or clustered) and own:
            ahead.append(own.pop(0))
        elif _RUN_FLAGS.fullmatch(word) is None and not any(
            word.startswith(value) for value in values if len(value) == 2
        ):
            call.refuse(f"the option {word[:30]} is not known; write its value behind =.", "shell-unclear")
    return ahead, own


def _check_mounts(call: Call, folders: Iterable[str]) -> None:
    for folder in folders:
        call.places.read(folder)
        if "docker.sock" in folder or wild(folder):
            call.refuse("this mount reaches into the machine.")
        if re.match(r"[/.]", folder) or "/" in folder:
            call.places.write(folder)


def _compose(call: Call, args: Sequence[str]) -> None:
    words = list(args)
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name in _COMPOSE_VALUES and not equals and words:
            value = words.pop(0)
        if re.match(r"-f.", name):
            name, value = "-f", name[2:]
        if name in ("-f", "--file", "--env-file", "--project-directory"):
            call.reads([value])
            call.places.script(call.literal(value, "the file"))  # it says what is run and mounted
            if "://" in value:
                call.refuse("name a file of this folder.", "shell-network")
    verb, rest = (words or [""])[0], tuple(words[1:])
    if verb not in _COMPOSE_VERBS:
        call.refuse(f"compose {verb[:20]} is not allowed here.")
    if verb in ("up", "run", "build", "create"):
        call.places.work_in()
    if verb == "down" and parse(rest).has("-v", "--volumes", "--rmi"):
        call.refuse("this throws the volumes away.")
    if parse(rest).has("--push"):
        call.refuse("the image stays on this machine.", "shell-network")
    if verb in ("exec", "run"):
        _container(call, rest, verb, service=True)


DOCKER_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), _docker),
    "docker-compose": lambda call: _compose(call, call.args),
}
