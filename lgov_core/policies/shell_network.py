"""Judges of the commands that talk to other machines: they may fetch from a place that is written out, and send nothing."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Sequence

from lgov_core.policies.network.addresses import why_closed
from lgov_core.policies.network.url_text import PlainURL, UnclearURL, read_url
from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, Parsed, is_option, wild

_CURL_VALUES = """
    -o --output -X --request -H --header -A --user-agent -e --referer -m --max-time --connect-timeout --retry
    --retry-delay -w --write-out -d --data --data-raw --data-binary --data-urlencode --data-ascii --json -F --form
    --form-string -T --upload-file -u --user -K --config -x --proxy -b --cookie -c --cookie-jar -D --dump-header
    --resolve --connect-to --url -r --range -E --cert --key --cacert --capath -U --proxy-user --unix-socket --interface
    -C --continue-at --limit-rate --max-redirs -Y -y -z --output-dir --url-query --variable --trace --trace-ascii
    --stderr --netrc-file --abstract-unix-socket --dns-servers --doh-url --preproxy --socks5 --socks4 --socks4a
    --socks5-hostname --proxy-header --oauth2-bearer --mail-from --mail-rcpt --max-filesize --keepalive-time
    --retry-max-time --etag-save --etag-compare --hsts --alt-svc --time-cond --proto --proto-default --proto-redir
    --tls-max --ciphers --pass --key-type --cert-type --aws-sigv4 --rate --create-file-mode --happy-eyeballs-timeout-ms
"""
_CURL_DATA = names(
    """
    -d --data --data-raw --data-binary --data-urlencode --data-ascii --json -F --form --form-string
    """
)
#: Options that send, log in, lead elsewhere or come from a file.
_CURL_CLOSED = names(
    """
    -T --upload-file -K --config -x --proxy --resolve --connect-to -E --cert --key --unix-socket -n --netrc --netrc-file
    --netrc-optional --abstract-unix-socket --preproxy --socks5 --socks4 --doh-url --dns-servers -q --variable --url-query
    --engine --libcurl -a --append -Q --quote -b --cookie --socks4a --socks5-hostname --mail-from --mail-rcpt
    """
)
#: Options that name a file to write.
_CURL_WRITING = names(
    "-o --output -D --dump-header -c --cookie-jar --output-dir --trace --trace-ascii --stderr --etag-save --hsts --alt-svc"
)
#: Options whose value is sent.
_CURL_SENT = names("-H --header -A --user-agent -e --referer -u --user -r --range -z --time-cond --oauth2-bearer")
_WGET_VALUES = (
    "-O --output-document -P --directory-prefix -o --output-file -a --append-output -U --user-agent -t --tries "
    "-T --timeout -e --execute -i --input-file --header --post-data --post-file --body-data --body-file "
    "--method --user --password -w --wait -l -A -R -D -Q --limit-rate --load-cookies --save-cookies "
    "--ca-certificate --use-askpass --config -B --base -X -I --referer --warc-file --rejected-log --hsts-file --warc-tempdir"
)
_WGET_WRITING = names(
    "-O --output-document -P --directory-prefix -o --output-file -a --append-output --save-cookies --warc-file --warc-tempdir"
    " --rejected-log --hsts-file"
)
#: Options that send something, log in, or take addresses and settings from a file.
_WGET_CLOSED = names(
    """
    --post-data --post-file --body-data --body-file --method -e --execute -i --input-file --config --use-askpass
    --load-cookies --password --user
    """
)
_HERE = ("localhost", "0.0.0.0", "host.docker.internal")
_DATA_SITES = re.compile(
    r"(?:.*\.)?(?:webhook\.site|requestbin\.\w+|pipedream\.net|ngrok(?:-free)?\.(?:io|app|dev)|transfer\.sh|pastebin\.com|0x0\.st|oast\.\w+"
    r"|interact\.sh|burpcollaborator\.net|beeceptor\.com|hookbin\.com|ix\.io|termbin\.com|dnslog\.cn|file\.io|bashupload\.com|paste\.ee)"
)


def _address(call: Call, text: str) -> PlainURL | None:
    """The URL, written out and not a metadata service; None when it is this machine."""
    call.literal(text, "the address")
    whole = text if "://" in text else f"http://{text}"
    if wild(whole.partition("://")[2].partition("/")[0].partition("?")[0]):
        call.refuse("the address is not written out; put it in quotes.", "shell-unclear")
    whole = re.sub(r"[\ue001\ue002]", "x", re.sub(r"\s", "%20", whole))
    try:
        url = read_url(whole)
    except UnclearURL as unclear:
        call.refuse(f"{unclear.reason}", "shell-network")
    if url.scheme not in ("http", "https"):
        call.refuse(f"{url.scheme}: is not allowed.", "shell-network")
    if url.host in _HERE or (url.address is not None and url.address.is_loopback):
        return None
    if url.host.endswith(("metadata.google.internal", "metadata.azure.com")) or url.host in (
        "metadata",
        "instance-data",
    ):
        call.refuse("metadata services hold credentials.", "shell-network")
    if url.address is not None:
        why = why_closed(url.address)
        private = (
            isinstance(url.address, ipaddress.IPv4Address) and url.address.is_private and not url.address.is_link_local
        )
        if why is not None and not private:
            call.refuse(f"{url.host} is {why}.", "shell-network")
    if _DATA_SITES.fullmatch(url.host):
        call.refuse(f"{url.host} takes in what others send; it is closed.", "shell-network")
    return url


def _curl(call: Call) -> None:
    if call.args[:1] and call.args[0] in ("-V", "--version", "--help", "-h"):
        return
    given = call.parsed(_CURL_VALUES)
    if set(_CURL_CLOSED) & set(given.options):
        call.refuse("uploads, proxies, cookies, keys and options from files are not allowed.", "shell-network")
    abbreviated = [
        option for option in given.options if option.startswith(("--up", "--pro", "--conf", "--dat", "--for", "--coo"))
    ]
    known = {*_CURL_DATA, "--proto", "--proto-default", "--proto-redir", "--compressed"}
    if any(option not in known for option in abbreviated):
        call.refuse("uploads, proxies, cookies, keys and options from files are not allowed.", "shell-network")
    urls = [_address(call, word) for word in (*given.operands, *given.of("--url"))]
    if not urls:
        call.refuse("write the address out.", "shell-unclear")
    _check_sent(call, given, outside=any(url is not None for url in urls))
    call.reads(given.of("-w", "--write-out"))
    if any("%output{" in word for word in given.of("-w", "--write-out")):
        call.refuse("write what is told about the answer to the output.", "shell-write")
    for word in given.of(*_CURL_WRITING):
        call.places.write(word)
    if given.has("-O", "--remote-name", "--remote-name-all"):
        _writes_by_name(call, given.operands, "".join(given.of("--output-dir")[-1:]))


def _check_sent(call: Call, given: Parsed, *, outside: bool) -> None:
    """Refuses methods that change something, and data and names taken from files or variables, to other machines at least."""
    data = [value for option, value in given.values if option in _CURL_DATA]
    for method in map(str.upper, given.of("-X", "--request")):
        if method in ("DELETE", "PURGE", "MOVE") or (outside and method not in ("GET", "HEAD", "OPTIONS")):
            call.refuse(f"{method[:20]} changes what is there; only reading is allowed.", "shell-network")
    if outside and data and not given.has("-G", "--get"):
        call.refuse("sending data to other machines is not allowed.", "shell-network")
    if not outside:  # files of this folder may go to a server on this machine
        data = [word for word in data if not _is_own_file(call, word)]
    if outside and any(re.match(r"[^=]*@", word) for word in given.of("--data-urlencode")):
        call.refuse("what is sent must be written out, not taken from a file or variable.", "shell-network")
    for word in (*data, *given.of(*_CURL_SENT)):
        if wild(word) or "@/" in word or word.startswith("@") or "=@" in word or "=<" in word:
            call.refuse("what is sent must be written out, not taken from a file or variable.", "shell-network")


def _writes_by_name(call: Call, addresses: Sequence[str], folder: str = "") -> None:
    """Judges files that are called as the addresses say, which are fetched."""
    for address in addresses:
        name = posixpath.basename(re.split(r"[?#]", address.partition("://")[2])[0])
        call.places.write(posixpath.join(folder, name or "."))


def _is_own_file(call: Call, word: str) -> bool:
    """Whether what is sent is a file of this folder (``@a.json``, ``file=@a.png``), which must hold no secret."""
    match = re.fullmatch(r"(?:[\w-]+=)?@([\w][\w./-]*)(?:;type=[\w/.+-]+)?", word)
    if match is None or not call.places.holds(match[1]):
        return False
    call.reads([match[1]])
    return True


def _wget(call: Call) -> None:
    if call.args[:1] in (("--version",), ("--help",)):
        return
    given = call.parsed(_WGET_VALUES)
    headers = [*given.of("--header"), *given.of("-U", "--user-agent", "--referer")]
    unread = given.has("--header") and not headers
    if given.has(*_WGET_CLOSED) or unread or any(wild(word) for word in headers):
        call.refuse("sending data, and options and addresses from files are not allowed.", "shell-network")
    for word in given.operands:
        _address(call, word)
    for word in given.of(*_WGET_WRITING):
        call.places.write(word)
    if not given.has("-O", "--output-document", "--spider"):
        _writes_by_name(call, given.operands, "".join(given.of("-P", "--directory-prefix")[-1:]))


def _httpie(call: Call) -> None:
    for word in call.parsed("-o --output --session").of("-o", "--output", "--session"):
        call.places.write(word)
    words = [word for word in call.args if not is_option(word)]
    methods = [word for word in words[:1] if word.isupper()]
    places = words[len(methods) : len(methods) + 1]
    url = _address(call, places[0] if places else "")
    if url is not None and call.given.kind != "none" and "--ignore-stdin" not in call.args:
        call.refuse("sending data to other machines is not allowed.", "shell-network")
    items = words[len(methods) + 1 :]
    if (
        (methods and methods[0] not in ("GET", "HEAD", "OPTIONS") and url is not None)
        or "DELETE" in methods
        or any("@" in i for i in items)
    ):
        call.refuse("only reading is allowed.", "shell-network")
    if url is not None and any(re.search(r"^[\w-]+:?=(?!=)", item) for item in items):
        call.refuse("sending data to other machines is not allowed.", "shell-network")


def _look_up(call: Call) -> None:
    """ping, dig and others: names written out, and nothing that looks like data in a name."""
    for word in call.args:
        call.literal(word, "the name")
        if not is_option(word) and any(len(label) > 40 for label in word.split(".")):
            call.refuse("data in a host name is not allowed.", "shell-network")
    if call.name.startswith("ping") and call.parsed("-c -i -s -W -w -t -I -p").has("-f", "-p"):
        call.refuse("flooding and patterns are not allowed.", "shell-network")
    if call.name == "dig" and call.parsed("-f").has("-f"):
        call.refuse("names from a file are not allowed.", "shell-network")


def _netcat(call: Call) -> None:
    given = call.parsed("-w -p -s -i -q -X -x -e -c --exec --sh-exec")
    targets = [word for word in given.operands if not word.isdigit()]
    if (
        not given.has("-z")
        or given.has("-e", "-c", "-l", "--exec", "--sh-exec")
        or any(target not in _HERE and not target.startswith("127.") for target in targets)
    ):
        call.refuse("only looking for an open port of this machine (-z) is allowed.", "shell-network")


def _tries(args: tuple[str, ...]) -> bool:
    """Whether rsync is told to change nothing, by a word that cannot be the value of another option."""
    if any(word.startswith(("--no-n", "--no-dry")) for word in args):
        return False
    for at, word in enumerate(args):
        if word == "--":
            return False
        if word == "--dry-run" or re.fullmatch(r"-[avzrhPiuct]*n[avzrhPiuct]*", word):
            before = args[at - 1] if at else ""
            if (
                not before.startswith("-")
                or "=" in before
                or re.fullmatch(r"-[avzrhPiuct]+|--(?:delete|progress|stats)", before)
            ):
                return True
    return False


def _rsync(call: Call) -> None:
    given = call.parsed(
        "-e --rsh --exclude --include --exclude-from --include-from --files-from --log-file --rsync-path -f --filter --bwlimit"
        " --timeout --contimeout --port --chmod --chown --info --debug --out-format --suffix --max-size --min-size --max-delete"
        " --backup-dir --partial-dir --temp-dir -T --compare-dest --copy-dest --link-dest --password-file --skip-compress -B"
        " --block-size --usermap --groupmap --iconv --outbuf --write-batch --only-write-batch --read-batch -M --remote-option"
        " --compress-level --checksum-choice --compress-choice --log-file-format --modify-window -@"
    )
    if given.has("-e", "--rsh", "--rsync-path", "--daemon", "--log-file", "-M", "--remote-option"):
        call.refuse("options that run programs or write logs are not allowed.")
    for word in given.of("--backup-dir", "--partial-dir", "-T", "--temp-dir", "--write-batch", "--only-write-batch"):
        call.places.write(word)
    trying = _tries(call.args)
    if (
        "--list-only" in given.options
        and len(given.operands) == 1
        and re.fullmatch(r"[\w.@-]+:[\w./-]*", given.operands[0])
    ):
        return
    if not trying and (
        given.has("--delete", "--remove-source-files", "--remove-sent-files")
        or any(option.startswith(("--delete", "--remove")) for option in given.options)
    ):
        for word in given.operands[-1:]:  # what is there is made again, or the copy is refused
            if given.has("--remove-source-files", "--remove-sent-files"):
                call.refuse("options that remove the source are not allowed.")
            call.places.delete(word, recursive=True)
    if any(re.match(r"[^/]*:|rsync://", word) for word in given.operands):
        call.refuse("copying to or from other machines is not allowed.", "shell-network")
    call.reads(given.operands[:-1])
    for word in given.operands[:-1]:
        call.places.read_tree(word)
    if not trying:
        for word in given.operands[-1:]:
            call.places.write(word)


NETWORK_JUDGES: dict[str, Judge] = {
    "curl": _curl,
    "wget": _wget,
    "http": _httpie,
    "https": _httpie,
    "nc": _netcat,
    "ncat": _netcat,
    "rsync": _rsync,
    **dict.fromkeys(("ping", "ping6", "dig", "nslookup", "host", "traceroute", "tracepath", "whois", "mtr"), _look_up),
}
