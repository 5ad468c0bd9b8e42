"""The command lines of services, by name: the words that look, and what else each may be told."""

from __future__ import annotations

import re

from lgov_core.policies.options import names

#: First parts of words that look and end the matter: what follows is what is looked at.
LOOKING = frozenset(
    names(
        "get list ls describe show status info version view inspect explain whoami about diff is can stat print lsf lsl lsd"
    )
)
#: Words that look, or name what is looked at, where nothing harmful stands beside them.
LOOKED_AT = frozenset(
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
#: Words that change something, also as the first part of a longer one (``delete-stack``).
HARMFUL = re.compile(
    r"(?:delete|destroy|remove|rm|purge|drop|prune|uninstall|terminate|revoke|reset|kill|stop|disable|mask|apply|create|put|update|set|"
    r"exec|edit|patch|scale|drain|cordon|taint|import|unregister|unsubscribe|unset|clear|wipe|forget|rotate|flush|add|del|restore|undo|abort|"
    r"rollback|login|send|publish|push|run|invoke|attach|detach|modify|write|move|sync|empty|rb|mb|mv|force-unlock|start|restart|enable|replace|pause|resume|promote|"
    r"cancel|approve|reject|retry|trigger|merge|close|transfer|migrate|upload|dispatch|revert|reconcile|rename|grant)"
    r"(?:[-_]\w[\w-]*)?",
    re.I,
)

#: Command lines of services: what else they may do besides looking. Everything else is refused.
SERVICES: dict[str, str] = {
    "terragrunt": "",
    "ansible-playbook": "",
    "ansible-inventory": "--list --graph --host -i",
    "ansible-doc": "",
    "apt-mark": "showmanual showauto showhold",
    "dpkg-query": "-l -L -s -S -W -f",
    "apk": "",
    "mysqladmin": "",
    "bq": "",
    "kafka-console-consumer": "--topic --bootstrap-server --from-beginning --max-messages",
    "kafka-get-offsets": "--topic --bootstrap-server",
    "cf": "apps app services routes target orgs spaces buildpacks marketplace",
    "grafana-cli": "",
    "datadog-agent": "",
    "sentry-cli": "",
    "apachectl": "configtest -t -S -v -V -M",
    "certbot": "certificates",
    "caddy": "validate adapt",
    "zpool": "iostat",
    "zfs": "",
    "mise": "",
    "nix": "",
    "k3d": "",
    "xmlstarlet": "",
    "aws-vault": "",
    "kubectl": "port-forward kustomize use-context",
    "oc": "whoami",
    "helm": "pull",
    "terraform": "init get select new",
    "tofu": "init get select new",
    "ansible": "",
    "aws": "cp",
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
    "skaffold": "build render diagnose",
    "packer": "",
    "vagrant": "global-status",
    "gitlab": "",
    "jenkins-cli": "",
    "temporal": "",
    "etcdctl": "health",
    "pg_isready": "-h -p",
    "mongotop": "",
    "rabbitmq-plugins": "",
    "az": "",
    "vault": "",
    "op": "",
    "doppler": "",
    "rclone": "copy lsjson",
    "restic": "backup mount init",
    "borg": "create init mount",
    "velero": "restore",
    "kafka-topics": "--describe --list --create",
    "kafka-consumer-groups": "--describe --list --bootstrap-server",
    "kafka-acls": "--list",
    "kafka-configs": "--describe",
    "kafka-broker-api-versions": "--bootstrap-server",
    "rabbitmqctl": "",
    "rabbitmqadmin": "",
    "rabbitmq-diagnostics": "",
    "nats": "sub",
    "circleci": "",
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
    "iptables": "",
    "ip6tables": "",
    "nft": "",
    "ip": "",
    "ifconfig": "",
    "mount": "",
    "sysctl": "",
    "ufw": "",
    "heroku": "",
    "fly": "",
    "vercel": "dev",
    "netlify": "build dev",
    "firebase": "",
    "supabase": "",
    "minikube": "",
    "kind": "",
    "k9s": "",
    "stern": "",
    "argocd": "",
    "consul": "members",
    "nomad": "",
    "glab": "checkout trace note",
    "doctl": "",
    "hcloud": "",
    "swapon": "--show",
    "timedatectl": "",
    "hostnamectl": "",
    "loginctl": "",
    "nvidia-smi": "",
    "rustup": "component target toolchain update default add install",
    "nvm": "use install current",
    "pyenv": "versions local install",
    "rbenv": "versions local",
    "asdf": "",
    "sdk": "",
    "conda": "activate create install export",
    "mamba": "activate create install export",
    "direnv": "",
    "ollama": "",
    "gitstats": "",
    "screen": "-ls",
    "git-lfs": "pull fetch ls-files track env",
    "docker-machine": "",
}
