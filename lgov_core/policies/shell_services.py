"""The judge of the command lines of services and of the machine's own: looking passes, changing does not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, wild

#: First parts of words that look and end the matter: what follows is what is looked at.
_LOOKING = frozenset(
    names(
        "get list ls describe show status info version view inspect explain whoami about diff is can stat print lsf lsl lsd"
    )
)
#: Words that look, or name what is looked at, where nothing harmful stands beside them.
_LOOKED_AT = frozenset(
    names(
        """
        log logs top lookup find search ping stats plan validate lint fmt template outdated audit why tree cat head size
        check doctor help query tail read wait watch verify dump du df count api cluster current receive scan filter
        history events images port config ps contexts providers graph metadata usage report bandwidth hosts account
        snapshots outputs output test env members metrics cluster-info api-resources api-versions current-context
        version-info about-info
        """
    )
)
_ABOUT_ITSELF = frozenset({"--version", "--help", "-h", "-V", "-v", "--list", "--show"})

#: Command lines of services: what else they may do besides looking. Everything else is refused.
SERVICES: dict[str, str] = {
    "terragrunt": "",
    "ansible-playbook": "",
    "ansible-inventory": "--list --graph --host -i",
    "ansible-doc": "",
    "apt-mark": "showmanual showauto showhold",
    "dpkg-query": "-l -L -s -S -W -f",
    "apk": "",
    "mysqladmin": "",
    "bq": "",
    "kafka-console-consumer": "--topic --bootstrap-server --from-beginning --max-messages",
    "kafka-get-offsets": "--topic --bootstrap-server",
    "cf": "apps app services routes target orgs spaces buildpacks marketplace",
    "grafana-cli": "",
    "datadog-agent": "",
    "sentry-cli": "",
    "apachectl": "configtest -t -S -v -V -M",
    "certbot": "certificates",
    "caddy": "validate adapt",
    "zpool": "iostat",
    "zfs": "",
    "mise": "",
    "nix": "",
    "k3d": "",
    "xmlstarlet": "",
    "aws-vault": "",
    "kubectl": "port-forward rollout wait auth config kustomize",
    "oc": "whoami",
    "helm": "repo dependency pull",
    "terraform": "init workspace state get",
    "tofu": "init state get",
    "ansible": "",
    "ansible-lint": "",
    "aws": "s3 cp",
    "gcloud": "",
    "gsutil": "cp",
    "azcopy": "copy",
    "mc": "",
    "pulumi": "preview",
    "stripe": "listen",
    "ldcli": "",
    "promtool": "",
    "amtool": "",
    "datadog-ci": "",
    "newrelic": "",
    "pd": "",
    "nginx": "-t -T -c -v -V",
    "haproxy": "-c -f",
    "traefik": "",
    "deck": "ping diff",
    "kong": "health config",
    "apigeecli": "",
    "wrangler": "dev",
    "flarectl": "",
    "ibmcloud": "",
    "linode-cli": "",
    "oci": "",
    "eksctl": "",
    "istioctl": "analyze proxy-status",
    "linkerd": "",
    "flux": "",
    "kustomize": "build",
    "skaffold": "build render diagnose",
    "packer": "",
    "vagrant": "global-status",
    "gitlab": "",
    "jenkins-cli": "",
    "temporal": "",
    "etcdctl": "endpoint member",
    "pg_isready": "-h -p",
    "mongotop": "",
    "rabbitmq-plugins": "",
    "az": "",
    "vault": "kv token auth",
    "op": "",
    "doppler": "",
    "rclone": "copy lsjson",
    "restic": "backup mount init",
    "borg": "create init mount",
    "velero": "backup restore schedule",
    "kafka-topics": "--describe --list --create",
    "kafka-consumer-groups": "--describe --list --bootstrap-server",
    "kafka-acls": "--list",
    "kafka-configs": "--describe",
    "kafka-broker-api-versions": "--bootstrap-server",
    "rabbitmqctl": "",
    "rabbitmqadmin": "",
    "rabbitmq-diagnostics": "",
    "nats": "sub",
    "circleci": "pipeline project namespace",
    "gitlab-runner": "",
    "systemctl": "",
    "service": "",
    "journalctl": "--since --until --unit -u -n -f -e -x -p -b -k -r -o -S -U -a -q --no-pager",
    "brew": "install upgrade update deps leaves services",
    "apt": "",
    "apt-get": "",
    "apt-cache": "policy depends rdepends madison",
    "dpkg": "-l -L -s -S --list --status",
    "rpm": "-q -qa -qi -ql",
    "dnf": "",
    "yum": "",
    "pacman": "-Q -Qi -Ss",
    "snap": "",
    "flatpak": "",
    "crontab": "-l",
    "iptables": "-L -S -n -v -t --line-numbers",
    "ip6tables": "-L -S -n -v -t --line-numbers",
    "nft": "",
    "ip": "addr a address route r link l neigh",
    "ifconfig": "",
    "mount": "",
    "sysctl": "-a -n",
    "ufw": "",
    "heroku": "",
    "fly": "",
    "vercel": "dev",
    "netlify": "build dev",
    "firebase": "",
    "supabase": "",
    "minikube": "",
    "kind": "",
    "k9s": "",
    "stern": "",
    "argocd": "app",
    "consul": "members",
    "nomad": "job",
    "glab": "mr issue ci repo",
    "doctl": "",
    "hcloud": "",
    "swapon": "--show",
    "timedatectl": "",
    "hostnamectl": "",
    "loginctl": "",
    "nvidia-smi": "",
    "rustup": "component target toolchain update default",
    "nvm": "use install current",
    "pyenv": "versions local install",
    "rbenv": "versions local",
    "asdf": "",
    "sdk": "",
    "conda": "activate create install env",
    "mamba": "activate create install env",
    "direnv": "",
    "ollama": "",
    "gitstats": "",
    "tmux": "ls list-sessions",
    "screen": "-ls",
    "git-lfs": "pull fetch ls-files track env",
    "docker-machine": "",
}
#: Tools that run what stands behind ``--`` after this word.
_RUNNING = {"kubectl": "exec", "oc": "exec", "doppler": "run", "op": "run", "aws-vault": "exec"}
#: What may be run in a container of a cluster, where no folder of this machine is meant.
_ELSEWHERE = frozenset(
    names(
        """
    ls cat head tail grep wc ps df du date whoami id uptime stat printenv hostname uname free psql mysql redis-cli
    mongosh curl nc pg_isready nslookup dig ping netstat ss
    """
    )
)
#: Options, of any tool, behind which stands a program to run.
_RUNS_MORE = re.compile(
    r"^--?[\w-]*(?:-command(?!-)|-cmd|rsh|post-renderer|-hook|-exec|from-command|remote-path|pipe|setopt)(?:=|$)|^--option$|\.command="
)
_CHANGING = (
    "create apply delete patch scale label annotate drain cordon uncordon rollout set expose replace taint autoscale"
)
#: Options with which a tool says what it would do and does not do it, and the words ahead of which they hold.
_TRYING = {
    **dict.fromkeys(("kubectl", "oc"), ("--dry-run", _CHANGING)),
    "helm": ("--dry-run", "install upgrade uninstall rollback delete"),
    "eksctl": ("--dry-run", "create"),
    "argocd": ("--dry-run", "app"),
    "wrangler": ("--dry-run", "deploy publish"),
    "aws": ("--dryrun --dry-run", "s3 ec2"),
    "rclone": (
        "--dry-run -n",
        "sync copy move copyto moveto delete deletefile purge rmdir rmdirs bisync cleanup dedupe",
    ),
    "borg": ("--dry-run -n", "create delete extract prune compact"),
    "restic": ("--dry-run -n", "backup forget prune restore rewrite tag"),
    "brew": ("--dry-run -n", "install uninstall upgrade cleanup autoremove"),
    **dict.fromkeys(("apt-get", "apt"), ("--dry-run -s --simulate --just-print", "")),
    "ansible-playbook": ("--check -C --syntax-check --list-tasks --list-hosts --list-tags", ""),
}
_FLAGS = frozenset(
    names(
        "--delete --all --recursive --force --install -y --yes -v --verbose --quiet -q --progress -A --wait --list -P"
    )
)
#: Whole lines that change something of one's own, or only fetch: written out word by word.
_SPECIAL = {
    "helm": re.compile(
        r"repo add [\w-]+ https://[\w./-]+|repo update(?: [\w-]+)?|dep(?:endency)? (?:update|build)(?: [\w./-]+)?"
        r""
    ),
    "apt": re.compile(r"(?:-\w+ )?update"),
    "apt-get": re.compile(r"(?:-\w+ )?update(?: -\w+)?"),
    "rpm": re.compile(r"-q[a-z]*(?: [\w./+][\w./+-]*)*"),
    "service": re.compile(r"--status-all"),
    "journalctl": re.compile(
        r"(?:(?:--disk-usage|--list-boots|--verify|--no-pager|-[nubpfexkr]+|\w[\w.@:-]*|_[A-Z_]+=[\w./-]+)(?: |$))+"
    ),
    "gcloud": re.compile(r"config set (?:core/)?(?:project|account|compute/region|compute/zone) [\w.@-]+|auth login"),
    "az": re.compile(r"account set (?:-s|--subscription|-n|--name) [\w-]+|login"),
    "aws": re.compile(
        r"(?:--\w+ [\w-]+ )*(?:sso login(?: --profile [\w-]+)?|eks update-kubeconfig(?: --[\w-]+ [\w-]+)*)"
    ),
    "restic": re.compile(r"unlock|(?:stats|ls|diff)(?: [\w./:-]+)*"),
    "rclone": re.compile(r"(?:md5sum|sha1sum|hashsum|tree|ncdu|listremotes|lsjson|check|cryptcheck)(?: [\w:./ -]+)?"),
    "firebase": re.compile(r"\w+:list|emulators:start(?: .*)?"),
    "heroku": re.compile(r"(?:apps|ps|releases|addons|logs|pg:info|domains|buildpacks)(?:(?: -a| --app)[ =][\w-]+)?"),
    "minikube": re.compile(r"start(?: --[\w-]+=[\w.-]+)*"),
    "supabase": re.compile(r"start"),
    "circleci": re.compile(r"diagnostic|setup|local execute(?: [\w][\w-]*)?"),
    "doppler": re.compile(r"setup(?: --[\w-]+ [\w.-]+)*"),
    "gitstats": re.compile(r"[\w./-]+ (?!/|\.\.)[\w-]+/?"),
    "tmux": re.compile(r"(?:new|new-session)(?: -d)?(?: -s [\w-]+)?|ls|attach(?: -t [\w-]+)?"),
    "xmlstarlet": re.compile(r"(?!.*document)(?:sel|select|val|validate|el|elements|fo|format)(?: .*)?", re.S),
    "mysqladmin": re.compile(
        r"(?:(?:-[hPu] ?|--(?:host|port|user)=)[\w.-]+ )*(?:status|ping|processlist|extended-status|variables|version)"
    ),
    "bq": re.compile(
        r"(?:--[\w]+=[\w.:-]+ )*(?:(?:ls|show|head)(?: .*)?|query (?:--\w+=[\w.:-]+ )*--dry_run .*)", re.S
    ),
    "nix": re.compile(r"(?:build|develop|flake (?:check|show|metadata))(?: \.?#?[\w.#-]+)?"),
    "asdf": re.compile(r"install(?: [\w.-]+)*|current"),
    "mise": re.compile(r"install(?: [\w.@-]+)*|current"),
    "ansible": re.compile(r"[\w.-]+ (?:-i [\w./-]+ )?-m (?:ping|setup|debug)(?: -i [\w./-]+)?"),
}
#: Tools of which nothing but these lines is let through.
_WHOLE = frozenset({"mysqladmin", "bq", "xmlstarlet"})
_HARMFUL = re.compile(
    r"(?:delete|destroy|remove|rm|purge|drop|prune|uninstall|terminate|revoke|reset|kill|stop|disable|mask|apply|create|put|update|set|"
    r"exec|edit|patch|scale|drain|cordon|taint|import|taint|unregister|unsubscribe|clear|wipe|forget|rotate|flush|add|del|restore|undo|abort|"
    r"rollback|login|send|publish|push|run|invoke|attach|detach|modify|write|move|sync|empty|rb|mb|mv|force-unlock|start|restart|enable)"
    r"(?:[-_]\w[\w-]*)?",
    re.I,
)


def _service(call: Call) -> None:
    """Lets looking through: the first word that says what to do must be a looking one."""
    extra = frozenset(SERVICES[call.name].split())
    call.reads(call.args)
    if any(_RUNS_MORE.search(word) for word in call.args) or (
        call.name.startswith("apt") and any(re.match(r"-[oc]|--option|--config", word) for word in call.args)
    ):
        call.refuse("an option among them runs a program.")
    if call.name.startswith("ansible"):
        _check_ansible(call)
    if _inner_command(call) or _only_tries(call):
        return
    if call.name in _SPECIAL and _SPECIAL[call.name].fullmatch(" ".join(call.args)):
        return
    if call.name in _WHOLE:
        call.refuse("only looking is allowed, in its plainest form.")
    if any(
        word.startswith("-")
        and not (
            _harmless_option(word) or word in extra or (word == "-w" and call.name in ("kubectl", "oc", "etcdctl"))
        )
        for word in call.args
    ):
        call.refuse("an option among them changes or removes something.")
    words = [word for word in call.args if not word.startswith("-")]
    _check_special(call, words)
    if not words:
        if any(word not in extra and word not in _ABOUT_ITSELF for word in call.args):
            call.refuse("only options that look at something are allowed.")
        return
    given = [word for word in call.args if word.startswith("-")]
    if any(word in extra for word in given):
        if any(word not in extra and not word.startswith("--") for word in given):
            call.refuse("an option among them is not known to only look.", "shell-unknown-command")
        return
    _check_heads(call, extra)


def _check_ansible(call: Call) -> None:
    """Playbooks, inventories and password files may be programs: they must be of this folder."""
    for word in call.args:
        value = word.partition("=")[2] if word.startswith("--") else re.sub(r"^-[A-Za-z](?=[/~.])", "", word)
        if value.startswith(("/", "~", ".")) or "/" in value or re.search(r"\.(?:ya?ml|ini|sh|py|cfg)$", value):
            call.places.script(value.removeprefix("@"))


def _inner_command(call: Call) -> bool:
    """Judges the command behind ``--`` that runs elsewhere or with more variables (``kubectl exec pod -- ls``)."""
    if call.name not in _RUNNING or "--" not in call.args:
        return False
    at = call.args.index("--")
    ahead, inner = call.args[:at], call.args[at + 1 :]
    words = [word for word in ahead if not word.startswith("-")]
    if _RUNNING[call.name] not in words or not inner or any(wild(word) for word in ahead):
        return False
    if not all(_harmless_option(word) for word in ahead if word.startswith("-")):
        return False
    if call.name in ("kubectl", "oc") and inner[0] not in _ELSEWHERE:
        call.refuse("in a container of a cluster only looking is allowed.")
    call.runner.run(inner, call.given)
    return True


def _only_tries(call: Call) -> bool:
    """Whether an option of a tool that knows it keeps the command from doing anything."""
    marks, verbs = (text.split() for text in _TRYING.get(call.name, ("", "")))
    if not marks or (verbs and "".join(_verbs(call.args)[:1]) not in verbs):
        return False
    found = False
    for at, word in enumerate(call.args):
        name = word.partition("=")[0]
        if word == "--" or re.fullmatch(
            r"--no-dry-?run|--dry-?run=(?:none|false|0|no)|--apply|--approve|--commit", word
        ):
            return False
        if word in marks or (name in marks and re.search(r"=(?:client|server|true|unchanged|1)$", word)):
            before = call.args[at - 1] if at else ""
            # Behind another option the word may be that option's value.
            found = found or not before.startswith("-") or "=" in before or before in _FLAGS
    return found


def _check_heads(call: Call, extra: frozenset[str]) -> None:
    heads = _verbs(call.args)
    for word in heads:
        if word in extra:
            continue
        if _looks(word):
            return
        if _HARMFUL.fullmatch(word):
            call.refuse(f"{' '.join(heads)[:60]!r} changes or removes something.")
    if any(word in extra or re.split(r"[-_:]", word)[0] in _LOOKED_AT for word in heads):
        return
    call.refuse(f"{' '.join(heads)[:60]!r} is not known to only look at something.", "shell-unknown-command")


def _check_special(call: Call, words: Sequence[str]) -> None:
    if call.name in ("aws", "gsutil", "azcopy") and {"cp", "copy"} & set(words) and re.match(r"[\w+]+://", words[-1]):
        call.refuse("sending files to other machines is not allowed.", "shell-network")
    if call.name == "rclone" and any(word.startswith(":") for word in words):
        call.refuse("name a remote that is configured.", "shell-network")
    if call.name == "kubectl" and any(re.fullmatch(r"secrets?(?:[/.].*)?", word) for word in words):
        call.refuse("secrets are closed.", "shell-secret")


def _verbs(args: Sequence[str]) -> list[str]:
    """The words, up to four, that may say what to do: options ahead of them and their values left out."""
    heads: list[str] = []
    value = False
    for word in args:
        if word.startswith("-"):
            if heads:
                break
            value = "=" not in word
        elif value and not (_looks(word) or word in _LOOKED_AT or _HARMFUL.fullmatch(word)):
            value = False
        else:
            value = False
            heads.append(word)
            if len(heads) == 4 or wild(word):
                break
    return heads


def _looks(word: str) -> bool:
    return re.split(r"[-_:]", word)[0] in _LOOKING


def _harmless_option(word: str) -> bool:
    name = word.partition("=")[0].lstrip("-")
    return (
        re.match(
            r"(?:delete|remove|purge|force|vacuum|rotate|flush|alter|unset|destroy|prune|erase|reset|write|w$|overwrite)",
            name,
        )
        is None
    )


SERVICE_JUDGES: dict[str, Judge] = dict.fromkeys(SERVICES, _service)
