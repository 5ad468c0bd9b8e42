"""ShellPolicy: secrets that a search finds and hands on, and secrets of the environment that are named."""

from __future__ import annotations

import pytest

from lgov_core.policies import ShellPolicy

DENIED = r"""
f''ind / -name shadow | xargs cat
\find / -name shadow | xargs cat
$'\x66ind' / -name shadow | xargs cat
cat server.key
cat tls/privkey1.pem
cat ~/.m2/settings.xml
cat ~/.local/share/keyrings/login.keyring
cat ~/.config/op/config
cat .streamlit/secrets.toml
cat google-credentials.json
cat /etc/kubernetes/admin.conf
cat /etc/wireguard/wg0.conf
cat /var/mail/root
ps auxe
ps eww
find /etc -name shadow -exec cat {} \;
find / -name 'shad*' -exec cat {} +
find /etc -type f -exec cat {} +
find -L /etc -type f -exec cat {} +
find / -name shadow | xargs cat
find / -name shadow -print0 | xargs -0 -n1 cat
find /etc -type f | sort | xargs grep root
find /etc -type f | while read -r f; do cat "$f"; done
cat $(find /etc -name shadow)
for f in $(find / -name 'shad?w'); do cat $f; done
F=$(find /etc -name shadow); cat $F
fd . /etc -x cat
fd -H .env -x cat
fd . /etc | xargs cat
find /home -name credentials -exec cat {} +
find ~ -name 'id*' -exec cat {} +
find /etc -name passwd -exec cp {} x \;
find / -type f -exec grep -H password {} +
echo $AWS_SECRET_ACCESS_KEY
printf '%s' "${GITHUB_TOKEN}"
printenv DB_PASSWORD
base64 <<< $API_KEY
echo "key: ${OPENAI_API_KEY:0:8}"
echo x${NPM_TOKEN:-none}
find /etc -iname SHADOW -exec head {} \;
find . /etc -exec cat {} +
cat `find /root -type f`
find / ! -name x -exec cat {} +
find /etc -name "$X" -exec cat {} +
mapfile -t a < <(find /etc -name shadow); cat ${a[0]}
while read -r f; do cat "$f"; done < <(find /etc -type f)
xargs cat < <(find /etc -name shadow)
find /etc -type f | while read f; do cat "$f"; done > out.txt
find / -name shadow 2>/dev/null | xargs cat
find /etc -type f 2>/dev/null | head -3 | xargs cat
find / -name '*.pem' -exec cat {} \;
find / -name '*.keystore' | xargs cat
cat app.keystore deploy.ppk
X=$GITHUB_TOKEN; echo $X
GH_TOKEN=$GITHUB_TOKEN; echo $GH_TOKEN
for t in $GITHUB_TOKEN; do echo $t; done
git commit --allow-empty -m "$GITHUB_TOKEN"
awk -v t="$GITHUB_TOKEN" 'BEGIN{print t}'
command echo $GITHUB_TOKEN
GITHUB_TOKEN=$GITHUB_TOKEN; echo $GITHUB_TOKEN
X=$GITHUB_TOKEN; bash -c 'echo $X'
eval 'X=$GITHUB_TOKEN'; echo $X
eval 'echo ${GITHUB_TOKEN}'
trap 'echo $GITHUB_TOKEN' EXIT
: ${X:=$GITHUB_TOKEN}; echo $X
: ${GITHUB_TOKEN:=none}; echo $GITHUB_TOKEN
f=a.txt; eval ': ${f:=/etc/shadow}'; cat $f
f=a.txt; eval 'x=${y}; f=/etc/shadow'; cat $f
"""

ALLOWED = r"""
cat cert.pem
cat docs/keys.md src/keyboard.py settings.xml
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem
ps aux
ps -ef
ps axo pid,etime
diff <(find /etc -type f) <(find /usr -type f)
while read -r f; do ls -l "$f"; done < <(find /etc -type f)
find / -size +1G 2>/dev/null | xargs du -h | sort -h
x=$(find . -name a.py); cat $x
cat <(find / -name x)
echo "$(find / -name core | wc -l)"
N=$(find /etc -name "*.conf" | wc -l)
find src -type f -exec cat {} +
find /etc -name '*.conf' -exec grep -H listen {} +
find / -type f -size +100M -exec ls -lh {} \;
find / -type f -size +100M | xargs ls -lh
find /var/log -name '*.log' -exec tail -n 5 {} +
find /usr/share -name '*.txt' | xargs head
find / -type d -name node_modules
n=$(find /etc -type f | wc -l); echo $n
for f in $(find . -name '*.py'); do head -3 "$f"; done
find . -name '*.md' | while read f; do cat "$f"; done
find /etc -type f | wc -l
cat certs/ca-bundle.pem src/keystore.py
find /etc/ssl/certs -name '*.pem' | head
git commit -m 'Read GITHUB_TOKEN from the environment'
grep -rn GITHUB_TOKEN .github
test -z "$GITHUB_TOKEN" || echo there
for token in a b; do echo $token; done
: ${X:=a}; echo $X
eval 'GITHUB_TOKEN=a'; echo $GITHUB_TOKEN
echo "${#GITHUB_TOKEN}"
[ -n "$GITHUB_TOKEN" ] && echo set
echo ${GITHUB_TOKEN:+set}
TOKEN=abc; echo $TOKEN
echo $MAX_TOKENS $TOKENIZERS_PARALLELISM $PWD $OLDPWD
printenv HOME PATH
find /etc -type f | xargs grep -l root
ls -l $(find / -name '*.so')
du -sh $(find / -type d -name cache)
fd '\.py$' src -x wc -l
for f in $(find /etc -type f); do ls -l "$f"; done
find / -name passwd
find . -newer x -exec stat {} +
"""

POLICY = ShellPolicy(cwd="/srv/desk", writable=["/srv/desk"])


@pytest.mark.parametrize("command", DENIED.strip().splitlines())
def test_what_shows_a_secret_is_denied(command: str) -> None:
    assert POLICY.judge_command(command).rule == "shell-secret"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ('while read f; do cat "$f"; done <<E', "/etc/shadow"),
        ("xargs cat <<E", "/etc/shadow"),
        ("cat <<E", "$GITHUB_TOKEN"),
        ("tee f <<E | cat", "$GITHUB_TOKEN"),
    ],
)
def test_a_secret_in_the_text_below_a_command_is_denied(command: str, line: str) -> None:
    assert POLICY.judge_command(f"{command}\n{line}\nE").rule == "shell-secret"


@pytest.mark.parametrize("command", ALLOWED.strip().splitlines())
def test_what_shows_none_is_allowed(command: str) -> None:
    decision = POLICY.judge_command(command)
    assert not decision.blocks, decision.reason
