"""Which commands are known, by which name, and when one is only asked what it does."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_awk import AWK_JUDGES
from lgov_core.policies.shell_call import Call, Judge, wild
from lgov_core.policies.shell_databases import DATABASE_JUDGES
from lgov_core.policies.shell_docker import DOCKER_JUDGES
from lgov_core.policies.shell_files import FILE_JUDGES
from lgov_core.policies.shell_filters import FILTER_JUDGES
from lgov_core.policies.shell_git import GIT_JUDGES
from lgov_core.policies.shell_github import GITHUB_JUDGES
from lgov_core.policies.shell_interpreters import INTERPRETER_JUDGES
from lgov_core.policies.shell_network import NETWORK_JUDGES
from lgov_core.policies.shell_packages import PACKAGE_JUDGES
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_runners import RUNNER_JUDGES
from lgov_core.policies.shell_services import SERVICE_JUDGES
from lgov_core.policies.shell_tools import TOOL_JUDGES
from lgov_core.policies.shell_trees import TREE_JUDGES

JUDGES: dict[str, Judge] = {
    **FILE_JUDGES,
    **FILTER_JUDGES,
    **AWK_JUDGES,
    **TREE_JUDGES,
    **RUNNER_JUDGES,
    **INTERPRETER_JUDGES,
    **GIT_JUDGES,
    **NETWORK_JUDGES,
    **SERVICE_JUDGES,
    **PACKAGE_JUDGES,
    **DOCKER_JUDGES,
    **DATABASE_JUDGES,
    **GITHUB_JUDGES,
    **TOOL_JUDGES,
}
PROGRAM_FOLDERS = frozenset({"/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/opt/homebrew/bin"})
_VERSIONED = re.compile(r"(python|pip|pypy|node|ruby|perl|php|gcc|g\+\+|clang|clang\+\+|lua)-?\d+(?:\.\d+)*")
#: Builtins that take a word for the name of a variable, and run what stands in its brackets.
_EVALUATING = frozenset({"printf", "test", "[", "read", "let", "mapfile", "readarray", "wait", "getopts", "local"})
#: Commands with commands of their own, each of which explains itself when ``--help`` stands behind it.
_WITH_COMMANDS = frozenset(
    names(
        """
    docker podman git gh npm cargo go pip uv dotnet kubectl oc helm terraform tofu terragrunt aws gcloud az vault consul
    nomad packer brew apt apt-get dnf journalctl systemctl flux argocd istioctl kustomize skaffold minikube kind k3d pulumi
    eksctl stripe restic rclone borg doctl
    """
    )
)
_COMMAND_WORD = re.compile(r"(?!(?:exec|run|ssh|x|dlx|test|eval|start|foreach)$)[a-z][a-z0-9-]*")
#: Commands that take any word for something to do; a word such as --help is none to them.
_NO_HELP = frozenset(names("eval exec . source command builtin xargs trap kill echo printf"))


def plain_name(name: str) -> str:
    """The name a judge goes by: ``python3.12`` is ``python``."""
    match = _VERSIONED.fullmatch(name)
    if match is not None:
        return match[1]
    if re.fullmatch(r"kafka-[a-z-]+\.sh", name):
        return name.removesuffix(".sh")
    return "mkfs" if name.startswith("mkfs.") else name


def asks_for_help(call: Call) -> bool:
    """Whether a known command is only asked what it does: ``rm --help``, ``terraform destroy --help``."""
    *ahead, last = call.args or ("",)
    if last not in ("--help", "--version") or any(wild(word) for word in ahead):
        return False
    if not ahead:
        return call.name not in _NO_HELP
    return (
        last == "--help"
        and call.name in _WITH_COMMANDS
        and len(ahead) <= 3
        and all(_COMMAND_WORD.fullmatch(word) for word in ahead)
    )


def check_names(call: Call) -> None:
    """Refuses a command hidden in the brackets of a name that a builtin evaluates."""
    if call.name in _EVALUATING and any(re.search(r"\[[^][]*(?:\$\(|`)", word) for word in call.args):
        raise Refused("shell-unclear", "A command hidden in a name is not allowed.")
