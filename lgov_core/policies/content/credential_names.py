"""Names that files and folders with keys and credentials have, wherever they lie."""

from __future__ import annotations

from typing import Final

from lgov_core.governor.options import names

#: Globs, in lower case. One with a slash is for a name within a folder of the other name.
CREDENTIAL_NAMES: Final = names(
    """
    .ssh .gnupg .aws .azure .kube .docker .password-store .netrc _netrc .pgpass .my.cnf .git-credentials .npmrc
    .pypirc .env .env.* .envrc .vault-token .htpasswd .s3cfg .boto id_rsa* id_dsa* id_ecdsa* id_ed25519*
    authorized_keys *.kdbx *.p12 *.pfx *.jks *.jceks *.bks *.keystore *.ppk *.p8 *.agekey
    login.keychain* credentials.json service-account*.json cookies.sqlite
    secrets.yml secrets.yaml secrets.json .terraformrc wallet.dat key4.db logins.json terraform.tfstate
    .cargo/credentials* .config/gcloud .config/gh .config/rclone *.key privkey*.pem *[-_]key.pem key.pem
    *private*.pem *keypair*.pem secrets.toml *[-_]credentials.json *adminsdk*.json .terraform.d .m2/settings.xml
    kubeconfig .gem/credentials .pulumi
    """
)
#: With those that are no more than likely to hold one: closed for the tools of agents and in boxes, where nothing else is lost.
SECRET_NAMES: Final = (*CREDENTIAL_NAMES, *names("*.env *_history *.pem"))
