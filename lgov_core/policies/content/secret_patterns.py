"""What secrets look like: one table, a row a format."""

from __future__ import annotations

import re
from typing import Final

from lgov_core.policies.content.findings import Check, Pattern
from lgov_core.policies.content.secret_checks import (
    basic_credentials,
    bearer_token,
    given,
    machine_key,
    not_a_placeholder,
    not_left_out,
    option_password,
    password,
    random_looking,
    session_cookie,
    spoken_password,
    url_password,
    wallet_key,
)

_BEFORE = r"(?<![A-Za-z0-9])"
_AFTER = r"(?![A-Za-z0-9])"


def _key(kind: str, body: str, *hints: str, check: Check = not_a_placeholder) -> Pattern:
    return Pattern(kind, re.compile(f"{_BEFORE}(?:{body}){_AFTER}"), hints, check)


def _given(kind: str, names: str, check: Check, *hints: str) -> Pattern:
    """A value given to a name: ``name = value``, ``"name": "value"``, ``--name value``, ``name: value``."""
    # The name is found by its last word; what follows it is anchored there, so nothing is tried twice.
    shape = (
        rf"(?:{names})s?(?:_(?:prod|dev|staging|stage|live|test|main|\d{{1,2}})|\d{{1,2}})?"
        r"(?:\s{0,4}[\"'\]`]){0,2}(?:\s{0,3}(?:=>|:=|==?|:)\s{0,3}(?:[bru]{0,2}[\"'`])?|>)([^\s\"'`<]{6,160})"
    )
    return Pattern(
        kind, re.compile(shape, re.IGNORECASE), hints, lambda text, start, end: given(check, text, start, end)
    )


#: A body that begins on the next line, or one that cannot be prose.
_PEM = (
    r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:\s{1,8}(?:[A-Z][A-Za-z-]{1,30}: [^\n]{0,120}\n\s{0,4}){0,4}"
    r"(?:(?<=\n)[A-Za-z0-9+/=]{6}|(?<=\s\s)[A-Za-z0-9+/=]{6}|M[CGHIJ][A-Za-z0-9+/]{4}|b3Bl|[A-Za-z0-9+/=]{32})"
    r"|(?=[A-Za-z0-9+/]{6}))"
    r"[A-Za-z0-9+/=\s:,.]{0,20000}(?:-----END [A-Z0-9 ]{0,48}-----)?"
)

KEYS: Final[tuple[Pattern, ...]] = (
    Pattern("private_key", re.compile(_PEM), ("-----begin",)),
    Pattern("private_key", re.compile(r"PuTTY-User-Key-File-[23]: \S{1,40}"), ("putty-user-key",)),
    _key("private_key", r"AGE-SECRET-KEY-1[0-9A-Z]{40,70}", "age-secret-key-1"),
    _key("aws_access_key", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}", "akia", "asia", "abia", "acca"),
    _key("gcp_key", r"AIza[0-9A-Za-z_-]{35}", "aiza"),
    _key("gcp_key", r"GOCSPX-[A-Za-z0-9_-]{24,40}", "gocspx-"),
    _key("gcp_key", r"ya29\.[0-9A-Za-z_-]{20,2048}", "ya29."),
    Pattern("azure_key", re.compile(r"(?:AccountKey|SharedAccessKey)\s{0,2}=\s{0,2}([A-Za-z0-9+/]{40,90}={0,2})", re.I), ("accountkey", "sharedaccesskey"), not_a_placeholder),
    Pattern("azure_key", re.compile(r"[?&]sig=([A-Za-z0-9%+/_-]{32,128}={0,2})"), ("sig=",), random_looking),
    _key("azure_key", r"[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}", "q~"),
    _key("azure_key", r"[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}", "azdo"),
    _key("github_token", r"gh[pousr]_[A-Za-z0-9]{30,255}", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    _key("github_token", r"github_pat_[A-Za-z0-9_]{22,255}", "github_pat_"),
    _key("gitlab_token", r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt|oas|ffct)-[A-Za-z0-9_.-]{20,300}", "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glsoat-", "glagent-", "glimt-", "gloas-", "glffct-"),
    _key("slack_token", r"xox[abceoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,250}", "xox"),
    _key("slack_token", r"xapp-\d-[A-Za-z0-9-]{20,200}", "xapp-"),
    Pattern("webhook", re.compile(r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_+-]{20,120}"), ("hooks.slack.com",), not_a_placeholder),
    Pattern("webhook", re.compile(r"discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/\d{15,21}/[A-Za-z0-9_-]{40,100}"), ("/webhooks/",), not_a_placeholder),
    _key("discord_token", r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}", ".", check=random_looking),
    _key("telegram_token", r"(?:bot)?\d{8,10}:AA[A-Za-z0-9_-]{32,35}", ":aa"),
    _key("stripe_key", r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,250}", "sk_", "rk_"),
    _key("stripe_key", r"whsec_[A-Za-z0-9+/=]{24,80}", "whsec_"),
    _key("anthropic_key", r"sk-ant-[A-Za-z0-9_-]{16,200}", "sk-ant-"),
    _key("openai_key", r"sk-(?:proj|svcacct|admin|None|or-v1|lf)-[A-Za-z0-9_-]{16,250}", "sk-", check=random_looking),
    _key("openai_key", r"sk-[A-Za-z0-9_-]{20,250}", "sk-", check=random_looking),
    _key("huggingface_token", r"(?:hf|api_org)_[A-Za-z0-9]{30,80}", "hf_", "api_org_"),
    _key("twilio_key", r"SK[0-9a-f]{32}", "sk", check=not_a_placeholder),
    _key("sendgrid_key", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}", "sg."),
    _key("mail_key", r"key-[0-9a-f]{32}|[0-9a-f]{32}-us\d{1,2}|re_[A-Za-z0-9]{8}_[A-Za-z0-9]{24}", "key-", "-us", "re_"),
    _key("npm_token", r"npm_[A-Za-z0-9]{30,40}", "npm_"),
    _key("pypi_token", r"pypi-[A-Za-z0-9_-]{40,300}", "pypi-"),
    _key("package_token", r"rubygems_[0-9a-f]{48}|dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,40}|cio[A-Za-z0-9]{32}", "rubygems_", "dckr_", "cio"),
    _key("cloud_token", r"do[opr]_v1_[a-f0-9]{64}|dapi[a-f0-9]{32}(?:-\d)?|HRKU-[A-Za-z0-9_-]{30,80}|fo1_[\w-]{43}", "_v1_", "dapi", "hrku-", "fo1_"),
    _key("cloud_token", r"hv[sbr]\.[A-Za-z0-9_-]{24,300}|pul-[a-f0-9]{40}|sbp_[a-f0-9]{40}|dp\.(?:pt|st|ct)\.[A-Za-z0-9]{40,44}|LTAI[A-Za-z0-9]{16,20}", "hvs.", "hvb.", "hvr.", "pul-", "sbp_", "dp.", "ltai"),
    _key("shop_token", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|sq0(?:atp|csp)-[A-Za-z0-9_-]{22,43}|EAAA[A-Za-z0-9_-]{60}", "shp", "sq0", "eaaa"),
    _key("service_token", r"lin_api_[A-Za-z0-9]{40}|ntn_[A-Za-z0-9]{40,50}|figd_[\w-]{40,50}|NRAK-[A-Z0-9]{27}|gl(?:sa|c)_[A-Za-z0-9_+/=]{30,200}", "lin_api_", "ntn_", "figd_", "nrak-", "glsa_", "glc_"),
    _key("service_token", r"AT[AC]TT3[A-Za-z0-9_=-]{60,300}|ATBB[A-Za-z0-9_=.-]{28,60}|sntry[su]_[A-Za-z0-9_=+/]{40,300}|PMAK-[a-f0-9]{24}-[a-f0-9]{34}|gsk_[A-Za-z0-9]{40,60}|xai-[A-Za-z0-9]{60,90}|pplx-[A-Za-z0-9]{40,60}|r8_[A-Za-z0-9]{30,50}", "atatt3", "atctt3", "atbb", "sntry", "pmak-", "gsk_", "xai-", "pplx-", "r8_"),
    _key("service_token", r"secret_[A-Za-z0-9]{43}|pat[A-Za-z0-9]{14}\.[a-f0-9]{64}|CFPAT-[A-Za-z0-9_-]{43}|aio_[A-Za-z0-9]{28}|lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}", "secret_", "pat", "aio_", "lsv2_"),
    _key("service_token", r"oy2[a-z0-9]{43}|AKCp[A-Za-z0-9]{60,75}|sdk-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|sk\.eyJ[A-Za-z0-9_-]{16,300}\.[A-Za-z0-9_-]{20,40}|EAA[MC][A-Za-z0-9]{60,300}|EAA[A-Za-z0-9]{90,300}", "oy2", "akcp", "sdk-", "sk.eyj", "eaa", check=random_looking),
    _key("cloud_token", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{60,70}|pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_=.-]{32,64}|nfp_[A-Za-z0-9_]{36}|dt0[a-z]\d{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}|fm[12][ar]?_[A-Za-z0-9_+/=,-]{50,500}", ".atlasv1.", "pscale_", "nfp_", "dt0", "fm1", "fm2"),
    _key("cloud_token", r"tskey-(?:auth|api|client|scim|webhook)-[A-Za-z0-9-]{20,80}|nvapi-[A-Za-z0-9_-]{60,70}|ops_eyJ[A-Za-z0-9_+/=-]{100,2000}|SWMTKN-1-[0-9a-z]{50}-[0-9a-z]{25}|bkua_[0-9a-f]{40}|CCIPAT_[A-Za-z0-9]{22}_[0-9a-f]{40}|GR1348941[A-Za-z0-9_-]{20}", "tskey-", "nvapi-", "ops_", "swmtkn-", "bkua_", "ccipat_", "gr1348941"),
    _key("service_token", r"tgp_v1_[A-Za-z0-9_-]{43}|tvly-[A-Za-z0-9-]{24,50}|xkeysib-[0-9a-f]{64}-[A-Za-z0-9]{16}|pcsk_[A-Za-z0-9_]{50,80}|jina_[A-Za-z0-9]{60}|phx_[A-Za-z0-9]{40,60}|e2b_[0-9a-f]{40}|sk_[0-9a-f]{48}|lin_oauth_[0-9a-f]{64}|sl\.[A-Za-z0-9_-]{130,1500}|shippo_(?:live|test)_[0-9a-f]{40}|duffel_(?:live|test)_[A-Za-z0-9_-]{43}|rdme_[a-z0-9]{70}|EZ[AT]K[A-Za-z0-9]{54}", "tgp_", "tvly-", "xkeysib-", "pcsk_", "jina_", "phx_", "e2b_", "sk_", "lin_oauth_", "sl.", "shippo_", "duffel_", "rdme_", "ezak", "eztk", check=random_looking),
    _key("service_token", r"sb_secret_[A-Za-z0-9_-]{20,40}|AVNS_[A-Za-z0-9_-]{19}|fc-[0-9a-f]{32}|[0-2]/\d{15,17}(?:/\d{15,17})?:[0-9a-f]{32}|apify_api_[A-Za-z0-9]{36}|sgp_(?:[0-9a-f]{16}_|local_)?[0-9a-f]{40}|csk-[a-z0-9]{40,60}|fw_[A-Za-z0-9]{22,24}|esecret_[A-Za-z0-9]{24,40}|waka_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "sb_secret_", "avns_", "fc-", "0/", "1/", "2/", "apify_api_", "sgp_", "csk-", "fw_", "esecret_", "waka_", check=random_looking),
    _key("service_token", r"pat-(?:na|eu|ap)\d-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|mlsn\.[0-9a-f]{64}|sq[apu]_[0-9a-f]{40}|tfp_[A-Za-z0-9_-]{40,60}|pn[bu]_[A-Za-z0-9]{36}|polar_(?:oat|pat)_[A-Za-z0-9]{40,60}|AstraCS:[A-Za-z0-9]{20,30}:[0-9a-f]{64}|access-(?:sandbox|production)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "pat-", "mlsn.", "sqa_", "sqp_", "squ_", "tfp_", "pnb_", "pnu_", "polar_", "astracs:", "access-", check=random_looking),
    _key("cloud_token", r"ABSK[A-Za-z0-9+/]{80,180}={0,2}|bedrock-api-key-[A-Za-z0-9+/]{60,4000}={0,2}|v1\.0-[0-9a-f]{24}-[0-9a-f]{146}|napi_[a-z0-9]{60,70}|rnd_[A-Za-z0-9]{28,36}|ddp_[A-Za-z0-9]{36}|vc[picark]_[A-Za-z0-9]{24,80}|cflt[A-Za-z0-9+/]{60}", "absk", "bedrock-api-key-", "v1.0-", "napi_", "rnd_", "ddp_", "vcp_", "vci_", "vca_", "vcr_", "vck_", "cflt", check=random_looking),
    _key("gcp_key", r"1//0[A-Za-z0-9_-]{40,120}|AQ\.[A-Za-z0-9_-]{40,80}", "1//0", "aq.", check=random_looking),
    Pattern("password", re.compile(r"WIFI:(?:[A-Z]:(?:[^;\n\\]|\\.){0,64};){0,4}P:((?:[^;\s\\]|\\.){6,63});"), ("wifi:",), not_left_out),
    _key("payment_key", r"FLWSECK(?:_TEST)?-[0-9a-f]{12,32}-X|rzp_live_[A-Za-z0-9]{14}|access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}", "flwseck", "rzp_", "access_token$"),
    _key("twitter_token", r"A{20,23}(?=[A-Za-z0-9%]{0,20}[0-9])[A-Za-z0-9%]{60,100}", "aaaaaaaaaaaaaaaaaaaa", check=random_looking),
    _key("gcp_key", r"AAAA[A-Za-z0-9_-]{7}:APA91b[A-Za-z0-9_-]{100,200}", ":apa91b"),
    Pattern("webhook", re.compile(r"hooks\.zapier\.com/hooks/catch/\d{4,10}/[A-Za-z0-9]{5,20}|[a-z0-9-]{1,60}\.webhook\.office\.com/webhookb2/[A-Za-z0-9/@-]{40,300}"), ("hooks.zapier.com", ".webhook.office.com"), not_a_placeholder),
    Pattern("private_key", re.compile(r"(?<![A-Za-z0-9])[5KL][1-9A-HJ-NP-Za-km-z]{50,51}(?![A-Za-z0-9])"), (), wallet_key),
    Pattern("private_key", re.compile(r"private[ _-]?key[\"']?(?:\s(?:is|was))?[\s:=\"']{1,4}((?:0x)?[0-9a-f]{64})(?![0-9a-z])", re.I), ("private",), random_looking),
    Pattern("password_hash", re.compile(r"\$(?:apr1|[156])\$(?:rounds=\d{1,9}\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{22,86}|\$2[aby]\$\d{2}\$[./A-Za-z0-9]{53}|\$y\$[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{1,86}\$[./A-Za-z0-9]{43}"), ("$",)),
    Pattern("basic_auth", re.compile(r"[\"']auth[\"']\s{0,2}:\s{0,2}[\"']([A-Za-z0-9+/]{8,400}={0,2})"), ("auth",), basic_credentials),
    Pattern("bearer_token", re.compile(r"(?<![A-Za-z])SSWS\s{1,3}([A-Za-z0-9_-]{30,100})"), ("ssws",), random_looking),
    _key("jwt", r"eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{4,16384}(?:\.[A-Za-z0-9_-]{0,2048})?", "eyj"),
    Pattern("url_password", re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s:/@\"'<>]{0,80}:([^\s/@\"'<>]{1,160})@[^\s/]"), ("://",), url_password),
    Pattern("basic_auth", re.compile(r"(?<![A-Za-z])basic\s{1,3}([A-Za-z0-9+/]{8,400}={0,2})", re.I), ("basic",), basic_credentials),
    Pattern("bearer_token", re.compile(r"(?<![A-Za-z])(?:bearer|authorization[\"']?\s{0,2}[:=]\s{0,2}[\"']?token)\s{1,3}([A-Za-z0-9._~+/=-]{16,4096})", re.I), ("bearer", "authorization"), bearer_token),
    Pattern("basic_auth", re.compile(r"(?<![\w-])(?:-u|--user)[ =][\"']?[A-Za-z0-9_.@-]{1,64}:([^\s\"']{6,128})"), ("-u", "--user"), password),
)  # fmt: skip

#: What a password is called in the languages that most prompts are written in, beside English.
_ELSEWHERE = r"passwort|kennwort|contraseña|mot de passe|senha|parola|wachtwoord|hasło|lösenord|adgangskode|salasana|heslo|jelszó|şifre|пароль|密码|密碼|口令|パスワード|비밀번호"
_ELSEWHERE_HINTS = tuple(_ELSEWHERE.split("|"))
#: ``password for the admin account``, ``password of ada@example.org``.
_OF_WHAT = r"(?:\s(?:for|of|on)(?:\s[\w@.'/-]{1,40}){1,5}?)?"
_OTHER_KEYS = (
    "PUBLIC PUB PUBLISHABLE ANON SITE PRIMARY FOREIGN SORT PARTITION ROW HASH CACHE OBJECT S3 FILE STORAGE ROUTING"
    " IDEMPOTENCY DEDUP INDEX LOOKUP HOST BUILD LOCK"
)
#: What looks like a key, in a variable in capitals that ends in KEY, is one unless the variable is one of these.
_NO_OTHER_KEY = "".join(rf"(?<!{word}_)" for word in _OTHER_KEYS.split())
ASSIGNMENTS: Final[tuple[Pattern, ...]] = (
    _given("password", r"passw(?:or)?d|passphrase|passwd|(?<![A-Za-z])(?:pwd?|pass|passcode)|_(?:pwd?|pass)|" + _ELSEWHERE, password, "pass", "pw", *_ELSEWHERE_HINTS),
    Pattern("password", re.compile(rf"(?:password|passphrase|passcode|pwd|pin code){_OF_WHAT}(?:\s(?:is|was|to|=>|->)|:)\s(?:now\s)?[\"'`]?([^\s\"'`]{{6,128}})", re.I), ("pass", "pwd", "pin code"), spoken_password),
    Pattern("password", re.compile(rf"(?:{_ELSEWHERE})(?:\s?[是は为為]\s?|\s(?:ist|lautet|war|est|es|era|é|è|jest|is|är|er|on|je|=>|->):?\s)[\"'`]?([^\s\"'`]{{6,128}})", re.I), _ELSEWHERE_HINTS, spoken_password),
    Pattern("password", re.compile(r"(?<!\S)(?:-p|-[awP]\s?|-U\s?[^\s%]{1,24}%|-pass(?:in|out)?\spass:)[\"']?([^\s\"']{6,128})"), ("mysql", "mariadb", "7z", "redis-cli", "ldap", "zip", "smbclient", "openssl"), option_password),
    Pattern("token", re.compile(r"(?<![\w.-])[\w.-]{0,24}(?:sess|sid|auth|token|login|remember)[\w.-]{0,16}=([^\s;,\"']{16,512})", re.I), ("cookie",), session_cookie),
    Pattern("password", re.compile(r"(?:sshpass\s{1,3}-p\s?|(?<![A-Za-z])machine\s\S{1,100}\slogin\s\S{1,64}\spassword\s)[\"']?([^\s\"']{6,128})"), ("sshpass", "machine"), password),
    Pattern("password", re.compile(r"(?<![\w-])(?:docker|podman|nerdctl|buildah|oras|crane|helm\sregistry|az)\slogin\s[^\n|;&]{0,200}?(?<!\S)-p[ =]?[\"']?([^\s\"']{6,256})"), ("login",), password),
    Pattern("password", re.compile(r"(?:(?<![\w-])(?:sqlplus|sqlldr|expdp|impdp|rman\starget)\s(?:-\w+\s){0,4}[\"']?|jdbc:oracle:(?:thin|oci):)[\w$#]{1,40}/([^\s@/\"']{6,64})@"), ("sqlplus", "sqlldr", "expdp", "impdp", "rman", "jdbc:oracle"), not_left_out),
    Pattern("password", re.compile(r"(?<![\w.*:/@-])[\w.*-]{1,253}:(?:543\d|6432|\*):[\w.*-]{1,63}:[\w.@-]{1,63}:([^\s:\"'`,;<]{6,128})(?![^\s\"'`,;<])"), (":543", ":6432:", ":*:"), spoken_password),
    Pattern("password", re.compile(r"(?:key|name)=\"[\w.:-]{0,40}(?:password|passwd|pwd|secret|api[_-]?key)\"\s{1,4}value=\"([^\s\"]{6,256})\"", re.I), ("value=",), password),
    Pattern("password", re.compile(r"variable\s\"[\w-]{0,40}(?:password|passwd|secret|token|api_key|access_key)[\w-]{0,20}\"\s?\{[^{}]{0,200}?(?<![\w-])default\s{0,8}=\s{0,4}\"([^\s\"]{6,256})\"", re.I), ("variable",), password),
    Pattern("password", re.compile(r"define\(\s?[\"'][A-Z_]{0,24}PASSWORD[\"'],\s?[\"']([^\"'\s]{6,128})"), ("define",), password),
    Pattern("secret", re.compile(r"define\(\s?[\"'][A-Z_]{0,24}(?:KEY|SECRET|SALT|TOKEN)[\"'],\s?[\"']([^\"'\s]{12,256})"), ("define",), machine_key),
    Pattern("token", re.compile(r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{1,40}_TOKEN\s{0,2}[=:]\s{0,2}[\"']?([^\s\"'`<]{12,512})"), ("_token",), machine_key),
    Pattern("api_key", re.compile(rf"(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{{1,40}}_(?:PAT|{_NO_OTHER_KEY}KEY)[\"']?\s{{0,2}}[=:]\s{{0,2}}[\"']?([A-Za-z0-9]{{24,128}})(?![\w.:/-])"), ("_pat", "_key"), machine_key),
    _given("api_key", r"(?:admin|api|access|auth|secret|private|signing|encryption|master|account|subscription|license|shared)[_. -]?(?:access[_. -]?)?key|apikey", machine_key, "key"),
    _given("token", r"(?:access|auth|refresh|bearer|api|secret|session|id|bot|personal|deploy|oauth|security|app|user|client|service|gh|github|gitlab|npm|pypi|hf|slack|webhook)[_. -]?token|(?<![A-Za-z_.-])token", machine_key, "token"),
    _given("secret", r"(?:client|app|api|consumer|shared|webhook|signing|oauth|jwt|session|hmac|totp|django)[_. -]?secret|(?<![A-Za-z])secret(?:[_-]?(?:key|value|token))?|_secret|credentials?", machine_key, "secret", "credential"),
    Pattern("password", re.compile(r"--[a-z-]{0,24}(?:password|passwd|passphrase|pwd)[ =][\"']?([^\s\"'`]{6,256})", re.I), ("--",), password),
    Pattern("token", re.compile(r"--[a-z-]{0,24}(?:token|key|secret)[ =][\"']?([^\s\"'`]{12,512})", re.I), ("--",), machine_key),
    Pattern("token", re.compile(r"(?:token|api key|secret key|access key|secret)\s(?:is|was|to)\s[\"'`]?([^\s\"'`]{16,512})", re.I), ("token is", "key is", "secret is", "token was", "key was", "token to", "key to"), machine_key),
)  # fmt: skip

ALL: Final = (*KEYS, *ASSIGNMENTS)
KINDS: Final = tuple(sorted({pattern.kind for pattern in ALL}))
