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
    "kubectl": "port-forward rollout wait auth config",
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
    "skaffold": "build",
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
    "nats": "",
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
    "vercel": "",
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
    if any(word.startswith("-") and not (_harmless_option(word) or word in extra) for word in call.args):
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
