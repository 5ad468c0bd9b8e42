"""Which names and places hold keys, credentials or private history."""

from __future__ import annotations

import os.path
import re
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import pairwise

from lgov_core.policies.credential_names import CREDENTIAL_NAMES
from lgov_core.policies.options import names
from lgov_core.policies.shell.values import ANY, BELOW, HOME, PIPE, STAR, UNKNOWN, is_wild

#: Names of keys, credentials and private history, wherever they lie.
_SECRET_NAMES = (
    *CREDENTIAL_NAMES,
    *names(
        """
        .*_history .mozilla .thunderbird .gem .config/google-chrome .config/chromium share/keyrings .config/op .config/hub
        .gradle/gradle.properties .subversion/auth .pulumi/credentials.json pip.conf
        """
    ),
)
_SECRET_NAME = re.compile("|".join(map(translate, _SECRET_NAMES)))
_SECRET_PLACE = re.compile(
    "|".join(
        map(
            translate,
            names(
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
            ),
        )
    )
)
#: Folders with some of these somewhere below.
HOLDING_SECRETS = re.compile(
    r"//?|/~|/(?:etc|home|Users|root|proc|run|dev|var|var/run)|/home/[^/]+|/Users/[^/]+|/~/\.config|/etc/ss[hl]"
)
_TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.test", "*.pub", "known_hosts")
#: What a word with a stand-in is compared with.
_EXAMPLES = names(
    f"""
    /etc/shadow /etc/gshadow /etc/sudoers /etc/passwd {HOME}/.ssh/id_rsa {HOME}/.ssh/id_ed25519
    {HOME}/.ssh/authorized_keys {HOME}/.aws/credentials {HOME}/.netrc {HOME}/.bash_history /proc/self/environ
    /dev/tcp/host/80 .env app/.env /app/.env {HOME}/.kube/config {HOME}/.git-credentials /root/.ssh/id_rsa
    /etc/ssl/private/privkey.pem /etc/ssl/private/site.key {HOME}/store.p12 {HOME}/release.keystore
    """
)
#: Stand-ins of one word beyond which it may be anything.
MAX_WILD = 24
_HOLE = re.compile(f"[{STAR}{ANY}{UNKNOWN}]")


def is_secret(word: str) -> bool:
    """Whether a path names a secret by its name or place, or may do so through a stand-in."""
    if word == PIPE:  # its commands are judged by themselves
        return False
    path = re.sub(f"{STAR}{{2,}}", STAR, re.sub(r"/{2,}", "/", word.replace(BELOW, "")))
    if len(_HOLE.findall(path)) > MAX_WILD:
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
    return is_wild(path) and _may_be_secret(path)


@lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.match(name.lower()) is not None


def _may_be_secret(path: str) -> bool:
    name = path.rpartition("/")[2]
    if len(_HOLE.sub("", path).replace("/", "")) < 2:
        return path.startswith("/")
    if not path.startswith(("/", ".")) and len(_HOLE.sub("", name).replace(".", "")) < 2:
        return False
    steps = {UNKNOWN: ".*", STAR: "[^/]*", ANY: "[^/]"}
    pattern = re.compile("".join(steps.get(letter, re.escape(letter)) for letter in path), re.DOTALL)
    for example in _EXAMPLES:
        hidden = example.rpartition("/")[2].startswith(".") and name[:1] in (STAR, ANY)  # no wildcard matches the dot
        if not hidden and pattern.fullmatch(example) is not None:
            return True
    return False
