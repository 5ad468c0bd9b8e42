"""Which names and places hold keys, credentials or private history."""

from __future__ import annotations

import os.path
import re
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import pairwise

from lgov_core.policies.content.credential_names import CREDENTIAL_NAMES
from lgov_core.policies.options import names
from lgov_core.policies.shell_words import ANY, HOME, PIPE, STAR, UNKNOWN

#: Names that hold keys, credentials or what somebody typed, wherever they lie.
_SECRET_NAMES = (
    *CREDENTIAL_NAMES,
    *names(
        """
        .*_history .mozilla .thunderbird .gem .config/google-chrome .config/chromium share/keyrings .config/op .config/hub
        .gradle/gradle.properties .subversion/auth .pulumi/credentials.json
        """
    ),
)
_SECRET_NAME = re.compile("|".join(translate(glob) for glob in _SECRET_NAMES))
_SECRET_PATHS = names(
    """
    /etc/shadow* /etc/gshadow* /etc/passwd* /etc/sudoers* /etc/security/* /etc/ssl/private* /etc/krb5* /etc/ssh/*
    /etc/master.passwd /proc/*/environ /proc/*/mem /proc/*/maps /proc/*/fd* /proc/*/root* /proc/*/cwd* /proc/*/cmdline
    /proc/kcore /proc/kallsyms /dev/mem /dev/kmem /dev/sd* /dev/nvme* /dev/vd* /dev/hd* /dev/disk* /dev/mapper*
    /dev/input* /dev/tcp* /dev/udp* /var/run/secrets* /run/secrets* /var/run/docker.sock /run/docker.sock /root /root/*
    /var/spool/cron* /var/lib/docker* /etc/kubernetes/*.conf /etc/kubernetes/pki* /etc/rancher/* /etc/wireguard*
    /etc/openvpn/* /etc/NetworkManager/system-connections* /etc/ppp/*-secrets /etc/postfix/sasl* /var/mail*
    /var/spool/mail* /var/lib/mysql* /var/lib/postgresql* /dev/kmsg /var/log/auth.log* /var/log/secure*
    /private/etc/master.passwd /Library/Keychains* /var/db/*
    """
)
_SECRET_PLACE = re.compile("|".join(translate(glob) for glob in _SECRET_PATHS))
#: Folders that hold some of these somewhere below.
HOLDING_SECRETS = re.compile(
    r"/(?:etc|home|Users|root|proc|run|dev|var|var/run)|/home/[^/]+|/Users/[^/]+|/~/\.config|/etc/ss[hl]"
)
_TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.test", "*.pub", "known_hosts")
#: What a word with a hole or a wildcard in it is compared with.
_EXAMPLES = names(
    f"""
    /etc/shadow /etc/gshadow /etc/sudoers /etc/passwd {HOME}/.ssh/id_rsa {HOME}/.ssh/id_ed25519
    {HOME}/.ssh/authorized_keys {HOME}/.aws/credentials {HOME}/.netrc {HOME}/.bash_history /proc/self/environ
    /dev/tcp/host/80 .env app/.env /app/.env {HOME}/.kube/config {HOME}/.git-credentials /root/.ssh/id_rsa
    /etc/ssl/private/privkey.pem /etc/ssl/private/site.key {HOME}/store.p12 {HOME}/release.keystore
    """
)
#: Those that may lie in any folder.
_ANYWHERE = (".env", "id_rsa", ".netrc", ".git-credentials", "server.key")
#: Holes and wildcards in one word beyond which nobody can say what it names.
MAX_HOLES = 24


def is_secret(word: str) -> bool:
    """Whether a word names a secret by its name or place, or may do so through a hole or a wildcard in it."""
    if word == PIPE:  # the commands in it are judged by themselves
        return False
    path = re.sub(r"/{2,}", "/", re.sub(f"[{STAR}{UNKNOWN}]{{2,}}", STAR if UNKNOWN not in word else UNKNOWN, word))
    if len(re.findall(f"[{STAR}{ANY}{UNKNOWN}]", path)) > MAX_HOLES:
        return True
    if "/./" in path or "/../" in path or path.startswith("./"):
        path = os.path.normpath(path)
    path = re.sub(r"^(?:/proc/(?:self|thread-self|\d+)/(?:root|cwd)|file:/+)(?=/)", "", path)
    parts = path.split("/")
    called = [*parts, *("/".join(pair) for pair in pairwise(parts))]
    if any(fnmatchcase(parts[-1], glob) for glob in _TEMPLATES):
        called = [name for name in called if name not in (parts[-1], ".ssh") and not name.startswith(".ssh/")]
    if any(_is_secret_name(name) for name in called if name):
        return True
    if path.startswith("/") and _SECRET_PLACE.match(path) is not None:
        return True
    return _may_be_secret(path) if re.search(f"[{UNKNOWN}{STAR}{ANY}]", path) else False


def finds_secret(folder: str, pattern: str) -> bool:
    """Whether a search below ``folder`` for files called ``pattern``, a glob, finds one of those that are known best."""
    if pattern.strip("*") and any(fnmatchcase(name, pattern.lower()) for name in _ANYWHERE):
        return True
    home = re.sub(r"^/(?:home|Users)(?:/[^/]+)?(?=/|$)", HOME, folder)
    return any(
        example.startswith(home.rstrip("/") + "/") and fnmatchcase(example.rpartition("/")[2], pattern.lower())
        for example in _EXAMPLES
    )


@lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.match(name) is not None


def _may_be_secret(path: str) -> bool:
    name = path.rpartition("/")[2]
    literal = re.sub(f"[{UNKNOWN}{STAR}{ANY}/]", "", path)
    if len(literal) < 2 or (not path.startswith(("/", ".")) and len(re.sub(f"[{STAR}{ANY}{UNKNOWN}.]", "", name)) < 2):
        return False
    steps = {UNKNOWN: ".*", STAR: "[^/]*", ANY: "[^/]"}
    pattern = re.compile("".join(steps.get(letter, re.escape(letter)) for letter in path), re.DOTALL)
    for example in _EXAMPLES:
        if pattern.fullmatch(example) is None:
            continue
        hidden = example.rpartition("/")[2].startswith(".")
        if not (hidden and name[:1] in (STAR, ANY)):  # a wildcard does not match a leading dot
            return True
    return False
