"""Which variables of the environment a shell text may set."""

from __future__ import annotations

import posixpath
import re

from lgov_core.policies.shell_places import Places, inside
from lgov_core.policies.shell_words import UNKNOWN

#: Environment variables through which a program runs other code, sends data elsewhere or forgets what it did.
_CLOSED_VARIABLES = re.compile(
    r"LD_\w*|DYLD_\w*|BASH_ENV|ENV|BASHOPTS|SHELLOPTS|PROMPT_COMMAND|PS[04]|IFS|HIST\w*|BASH_FUNC\w*|SHELL"
    r"|PYTHON(?:STARTUP|HOME|INSPECT|BREAKPOINT|USERBASE|EXECUTABLE|WARNINGS)|PERL5(?:OPT|LIB|DB)|PERLLIB|RUBY(?:OPT|LIB)|NODE_OPTIONS|NODE_PATH"
    r"|GIT_(?:SSH|SSH_COMMAND|EXTERNAL_DIFF|PROXY_COMMAND|ASKPASS|CONFIG\w*|EXEC_PATH|TEMPLATE_DIR|ALLOW_PROTOCOL)|SSH_ASKPASS|SUDO_ASKPASS"
    r"|PIP_(?:INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|TRUSTED_HOST|CONFIG_FILE)|UV_\w*INDEX\w*|(?i:npm_config_\w*)|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS"
    r"|JDK_JAVA_OPTIONS|RUSTC(?:_WRAPPER|_WORKSPACE_WRAPPER)?|CARGO_BUILD_RUSTC\w*|GOFLAGS|GOPROXY|GONOSUMDB|GOINSECURE|(?i:\w*_proxy)|SSLKEYLOGFILE"
    r"|NODE_TLS_REJECT_UNAUTHORIZED|NODE_EXTRA_CA_CERTS|SSL_CERT_\w*|CURL_HOME|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|TERMINFO|OPENSSL_\w*"
    r"|TAR_OPTIONS|ZIPOPT|UNZIP|GREP_OPTIONS|RSYNC_RSH|CVS_RSH|SVN_SSH|VIMINIT|EXINIT|MAKEFILES|DOTNET_STARTUP_HOOKS|PHPRC|PHP_INI_SCAN_DIR|WGETRC|PSQLRC|PSQL_EDITOR"
    r"|PGSERVICEFILE|PGSYSCONFDIR|ERL_\w*FLAGS|ELIXIR_ERL_OPTIONS|R_PROFILE\w*|R_ENVIRON\w*|LUA_\w+|LESSKEY\w*|DOCKER_CONFIG|HELM_PLUGINS|ANSIBLE_(?:CONFIG|LIBRARY|\w*PLUGINS?)"
    r"|TF_CLI_\w+|YARN_(?:RC_FILENAME|YARN_PATH)|COVERAGE_PROCESS_START|PYLINTRC|CMAKE_\w+_LAUNCHER|GIT_\w*_PAGER|BAT_PAGER|DELTA_PAGER"
    r"|PGPASSFILE|DOCKER_HOST|KUBECONFIG|AWS_\w*|AZURE_\w*|GOOGLE_\w*|BASH_XTRACEFD|OLDPWD|FPATH|CDPATH|GLOBIGNORE|HOME|MAKEFLAGS|LESS(?:OPEN|CLOSE)|MANPAGER|SYSTEMD_\w*"
)
#: Variables that name places from which programs load code or settings.
_CODE_PLACES = re.compile(
    r"PYTHONPATH|CLASSPATH|GIT_(?:DIR|COMMON_DIR|OBJECT_DIRECTORY)|GOPATH|GOROOT|GOBIN|GOENV|XDG_(?:CONFIG|DATA)_(?:HOME|DIRS)|BUNDLE_\w+|\w+_PLUGINS?(?:_DIR|_PATH)?|\w*[A-Z]RC"
    r"|\w+_HOME|GEM_PATH|\w+_CONFIG(?:_FILE|_DIR|_PATH)?|CC|CXX|CPP|LD|AR|AS|FC|RUSTC|PYTHON|NODE|MAKE"
)
_SHARED = ("/tmp", "/var/tmp", "/dev", "/proc", "/run")
#: In the options that a variable holds: what loads or runs other code.
_LOADING = re.compile(
    r"-javaagent|-agentlib|-agentpath|-XX:On\w+Error|-fplugin|-wrapper|-specs|-load\b|-B\s?/|-toolexec|--(?:require|import|eval|init-hook|rsh)\b"
)
#: Variables that name a program which others run, with its options.
_TOOLS = re.compile(
    r"CC|CXX|CPP|LD|AR|AS|FC|RUSTC|PYTHON\d*|NODE|MAKE|[A-Z]+_(?:CC|CXX|LD|AR|PYTHON)|HOST\w+|RM|CP|MV|INSTALL|SED|AWK|PERL|GO"
)
#: In such a value, or in one that make puts into its commands: more than a program and its options.
_RUNNING = re.compile(r"[;|`\n]|&&|\$\(shell|\$\$|[<>]\(")
_HANDED = re.compile(
    r"(?:^|[\s/])(?:(?:ba|da|z|k|c|tc)?sh\s+-\w*c|(?:python[\d.]*|perl|ruby|node|php)\s+-\w*[ceEr])\b|(?:^|[\s/])(?:curl|wget|ncat?|ssh)\s"
)
#: Variables that name a program: harmless with these values.
_PROGRAMS = re.compile(r"(?:GIT_|)(?:PAGER|EDITOR|SEQUENCE_EDITOR)|VISUAL|BROWSER|MANPAGER|SYSTEMD_PAGER")
_QUIET = ("", "cat", "true", ":", "less", "none")


#: Closed variables that may be given such values: they set a limit or a flag, or name what is set up already.
_PLAIN_VALUES = {
    "NODE_OPTIONS": r"(?:--(?:max[-_](?:old|semi)[-_]space[-_]size=\d+|experimental-(?:vm-modules|json-modules|strip-types)"
    r"|no-warnings|no-deprecation|trace-(?:warnings|deprecation|uncaught)|openssl-legacy-provider|enable-source-maps|stack-trace-limit=\d+"
    r"|unhandled-rejections=\w+|dns-result-order=\w+)(?: +|$))+",
    **dict.fromkeys(
        ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"),
        r"(?:(?:-X(?:m[sxn]|ss)\d+[kmgKMG]?|-XX:\+Use\w+GC)(?: +|$))+",
    ),
    "GOFLAGS": r"(?:(?:-mod=(?:mod|vendor|readonly)|-count=\d+|-tags=[\w,]+|-buildvcs=\w+|-race|-v|-trimpath|-p=\d+)(?: +|$))+",
    "GOPROXY": r"(?:https://proxy\.golang\.org|direct|off)(?:,(?:direct|off))?",
    "MAKEFLAGS": r"(?:-?j\d*|-s|-k|--no-print-directory)",
    "PYTHONWARNINGS": r"(?:ignore|error|default|always|once)(?:::\w*)?",
    **dict.fromkeys(("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "GOOGLE_CLOUD_PROJECT"), r"[\w-]+"),
    "AWS_PAGER": r"(?:|cat|less)",
}
#: Variables of the environment that hold a secret, by the way they are called.
_SECRET_VARIABLES = re.compile(
    r"[A-Z0-9_]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIALS?|APIKEY|(?:API|ACCESS|PRIVATE|SIGNING|ENCRYPTION"
    r"|MASTER|AUTH|SECRET|DEPLOY)_KEY|SECRET_KEY_BASE|GITHUB_PAT)(?:_\d+)?|MYSQL_PWD"
)


def is_secret_variable(name: str) -> bool:
    """Whether a variable of the environment holds a secret by the way it is called (``GITHUB_TOKEN``)."""
    return _SECRET_VARIABLES.fullmatch(name) is not None


_TELLING_ALL = re.compile(r"(?:env|printenv|set|export|(?:export|declare|typeset) -[px]+)(?: -0)?(?: 2>/dev/null)?")
_SECRET_WORD = re.compile(r"token|secret|passw|credential|api.?key|_key\b|\bkeys?\b|\baws|\bpass\b", re.I)
#: Stages that print no values, or leave out the lines they find.
_VALUELESS = re.compile(
    r"\bcut -d ?['\"]?=['\"]? -f ?1\b|s/=\.\*|grep -\w*[cq]|grep -\w*v(?!.* \| )|print \$1\}|\bwc\b"
)


def shows_secret_variables(stages: list[str]) -> bool:
    """Whether the commands of a pipeline, as text, look for secrets among all variables (``env | grep TOKEN``)."""
    rest = " | ".join(stages[1:])
    return (
        _TELLING_ALL.fullmatch(stages[0]) is not None
        and _SECRET_WORD.search(rest) is not None
        and _VALUELESS.search(rest) is None
    )


def check_assignment(name: str, values: list[str], places: Places) -> str | None:
    """Why a variable may not be given one of ``values``, or None. Raises `Refused` for a place that may not be written."""
    if _PROGRAMS.fullmatch(name):
        return None if all(value in _QUIET for value in values) else f"{name} would make other programs run something"
    if name == "PATH":
        bad = [entry for value in values for entry in value.split(":") if not _is_program_folder(entry)]
        return "PATH may only be given folders of installed programs, before or after $PATH" if bad else None
    if name in _PLAIN_VALUES and all(re.fullmatch(_PLAIN_VALUES[name], value) for value in values):
        return None
    if name == "LD_LIBRARY_PATH" and all(_is_library_folder(entry, places) for v in values for entry in v.split(":")):
        return None
    if _CLOSED_VARIABLES.fullmatch(name):
        return f"setting {name} changes what other programs run or where they send things"
    if re.search(r"(?:OPTS|OPTIONS|FLAGS|ARGS)$", name) and any(_LOADING.search(value) for value in values):
        return f"{name} would make other programs load or run something"
    if _TOOLS.fullmatch(name) and any(_RUNNING.search(value) or _HANDED.search(value) for value in values):
        return f"{name} would make other programs run something"
    if _CODE_PLACES.fullmatch(name):
        return _check_code_places(name, values, places)
    if name == "TMPDIR":
        for value in values:
            places.write(value)
    return None


def check_make_variable(name: str, value: str, places: Places) -> str | None:
    """Why make may not be given ``name=value``, or None: it hands it to the environment and the text of its commands."""
    if _RUNNING.search(value):
        return f"{name} holds more than a value"
    return check_assignment(name, [value], places)


def _check_code_places(name: str, values: list[str], places: Places) -> str | None:
    """Why programs may not load code from what ``values`` name: folders that others can write to, or beside this one."""
    home = places.folders[0]
    for entry in (entry for value in values for entry in value.split(":")):
        if re.match(r"[A-Za-z+]+$|//", entry) and "://" in "".join(values):
            return f"{name} would make other programs load code from elsewhere"
        for folder in places.folders if "/" in entry or entry in (".", "..") else ():
            path = posixpath.normpath(posixpath.join(folder, entry))
            shared = any(inside(path, root) for root in _SHARED)
            if not inside(path, home) and (shared or not entry.startswith("/")):
                return f"{name} would make other programs load code from outside of this folder"
    return None


def _is_library_folder(entry: str, places: Places) -> bool:
    """Whether programs may load libraries from a folder: one below this one, or of what is installed."""
    if UNKNOWN in entry or not entry or ".." in entry.split("/"):
        return False
    return entry.startswith(("/usr/", "/opt/", "/lib/")) or places.holds(entry)


def _is_program_folder(entry: str) -> bool:
    if UNKNOWN in entry or not entry.startswith("/") or ".." in entry:
        return False
    return not entry.startswith(("/tmp", "/var/tmp", "/dev", "/proc", "/run"))
