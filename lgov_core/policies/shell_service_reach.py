"""What a command line of a service reaches beside what it looks at: other servers, files, credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, is_option

_HERE = re.compile(r"(?:https?://)?(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?(?:/.*)?")
#: Tools that send the credentials they hold to the server an option names.
_TRUSTING = frozenset(names("kubectl oc helm aws vault consul nomad argocd flux istioctl velero"))
_SERVER = frozenset(
    names(
        "server endpoint-url kube-apiserver kube-token address http-addr agent-address cluster insecure-skip-tls-verify"
    )
)
_OUTPUT = frozenset(
    names(
        "output-dir output-directory untardir destination out out-dir outfile output-file export-dir local-dir cursor-file"
    )
)
#: Files and folders a tool runs something from.
_RUN_FROM = frozenset(names("kubeconfig chdir plugin-dir working-dir terragrunt-working-dir registry-config"))
_INSTALLERS = frozenset(names("brew conda mamba asdf mise nvm pyenv rustup"))
#: Words that hand out what somebody can log in with.
_CREDENTIALS = re.compile(
    r"\b(?:get-session-token|get-federation-token|assume-role[\w-]*|get-login(?:-password)?|get-password-data|get-access-token"
    r"|get-authorization-token|generate-db-auth-token|print-(?:access|identity|refresh)-token|export-credentials|list-keys"
    r"|keys list|credential list|show-connection-string|keyvault (?:secret|key|certificate) (?:show|download)|presign|sign-?url"
    r"|create token|state pull|configure (?:\S+ )?get \S*(?:key|secret|token|password)\S*)(?![\w-])",
    re.I,
)
#: Options that make a tool show them.
SHOWING_CREDENTIALS = re.compile(
    r"--(?:show|with|reveal|print|unmask|decrypt)-?(?:auth-?)?(?:tokens?|secrets?|passwords?|credentials?|keys?|plaintext|sensitive)(?:=.*)?"
)
_KUBE_SECRETS = re.compile(r"(?:^|[,/=])secrets?(?:[/.,]|$)", re.I)
_REMOTE = re.compile(r"[\w.+-]+://|:[\w-]+:|[\w.-]+@|[A-Za-z][\w.-]*:(?!:)")


def check_reach(call: Call) -> None:
    """Refuses another server, a place to write to outside of the folder, and what hands out credentials."""
    args = call.args[: call.args.index("--")] if "--" in call.args else call.args
    words = [word for word in args if not is_option(word)]
    for name, value in _options(args):
        if call.name in _TRUSTING and (name in _SERVER or (name == "s" and call.name in ("kubectl", "oc"))):
            if _HERE.fullmatch(value) is None:
                call.refuse("what it knows is sent to no other server than the one that is set up.", "shell-network")
        elif name in _OUTPUT or (name == "d" and call.name == "helm"):
            call.places.write(value)
        elif name in _RUN_FROM or (name == "c" and call.name == "nginx" and not value.startswith("/etc/")):
            call.places.script(call.literal(value, "the place"))
        elif name == "from-module":
            call.refuse("modules come from the configuration.", "shell-network")
        elif name in ("p", "prefix") and call.name in ("conda", "mamba"):
            call.places.write(value)
    shown = any(SHOWING_CREDENTIALS.fullmatch(word) for word in args) or (
        words[:2] == ["auth", "status"] and "-t" in args and call.name == "glab"
    )
    if shown or _CREDENTIALS.search(" ".join(words)) or (call.name in ("kubectl", "oc") and "--raw" in args):
        call.refuse("this hands out what somebody can log in with.", "shell-secret")
    if call.name in ("kubectl", "oc") and any(_KUBE_SECRETS.search(word) for word in args):
        call.refuse("secrets are closed.", "shell-secret")
    if call.name in _INSTALLERS and any("://" in word for word in args):
        call.refuse("packages come from the usual index.", "shell-network")
    lasting = any(re.match(r"--(?:set|add|append|prepend|remove|stdin)", word) for word in args)
    if call.name in ("conda", "mamba") and "config" in words and lasting:
        call.refuse("its settings hold for other folders too; they stay as they are.")
    _check_copies(call, args, words)


def _options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options without their dashes, with what may be their value."""
    for at, word in enumerate(args):
        if is_option(word):
            name, equals, value = word.lstrip("-").partition("=")
            yield name, value if equals else "".join(args[at + 1 : at + 2])


def _check_copies(call: Call, args: Sequence[str], words: Sequence[str]) -> None:
    """Files come from elsewhere to where the text may write, and go nowhere."""
    if call.name in ("aws", "gsutil", "azcopy") and {"cp", "copy"} & set(words[:6]):
        far = [at for at, word in enumerate(args) if re.match(r"[\w+]+://", word)]
        target = "".join(args[far[0] + 1 : far[0] + 2]) if len(far) == 1 else ""
        if not target or (is_option(target) and target != "-"):
            call.refuse("sending files to other machines is not allowed; copy from there to here.", "shell-network")
        call.places.write(target)
    if call.name == "aws" and "get-object" in words:
        behind = words[words.index("get-object") + 1 :]
        for word in (*behind[-1:], *(word for word in behind if word.startswith(("/", "..")))):
            call.places.write(word)
    if call.name == "rclone" and not {"--dry-run", "-n"} & set(args):
        if any(word.startswith(":") for word in words):
            call.refuse("name a remote that is configured.", "shell-network")
        for word in words[words.index("copy") + 2 :] if "copy" in words else ():
            if _REMOTE.match(word):
                call.refuse("sending files to other machines is not allowed; copy from there to here.", "shell-network")
            call.places.write(word)
    if call.name in ("borg", "restic") and not {"--dry-run", "-n"} & set(args):
        sending = {"create", "backup"} & set(words)
        if sending and any(
            _REMOTE.match(word.partition("::")[0]) for word in (*words, *(v for _, v in _options(args)))
        ):
            call.refuse("sending files to other machines is not allowed.", "shell-network")
        for word in words if sending else ():
            call.places.read_tree(word)
