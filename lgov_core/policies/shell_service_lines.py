"""Whole lines of command lines of services that pass: trials, and changes of one's own."""

from __future__ import annotations

import re

CHANGING = (
    "create apply delete patch scale label annotate drain cordon uncordon rollout set expose replace taint autoscale"
)
#: Options with which a tool says what it would do and does not do it, and the words ahead of which they hold.
TRYING = {
    **dict.fromkeys(("kubectl", "oc"), ("--dry-run", CHANGING)),
    "helm": ("--dry-run", "install upgrade uninstall rollback delete"),
    "eksctl": ("--dry-run", "create"),
    "argocd": ("--dry-run", "app"),
    "wrangler": ("--dry-run", "deploy publish"),
    "aws": ("--dryrun --dry-run", "s3 ec2"),
    "rclone": (
        "--dry-run -n",
        "sync copy move copyto moveto delete deletefile purge rmdir rmdirs bisync cleanup dedupe",
    ),
    "borg": ("--dry-run -n", "create delete extract prune compact"),
    "restic": ("--dry-run -n", "backup forget prune restore rewrite tag"),
    "brew": ("--dry-run -n", "install uninstall upgrade cleanup autoremove"),
    **dict.fromkeys(("apt-get", "apt"), ("--dry-run -s --simulate --just-print", "")),
    "ansible-playbook": ("--check -C --syntax-check --list-tasks --list-hosts --list-tags", ""),
}
#: Whole lines that change something of one's own, or only fetch: written out word by word.
SPECIAL = {
    "helm": re.compile(
        r"repo add [\w-]+ https://[\w./-]+|repo update(?: [\w-]+)?|dep(?:endency)? (?:update|build)(?: [\w./-]+)?"
    ),
    "apt": re.compile(r"(?:-\w+ )?update"),
    "apt-get": re.compile(r"(?:-\w+ )?update(?: -\w+)?"),
    "rpm": re.compile(r"-q[a-z]*(?: [\w./+][\w./+-]*)*"),
    "service": re.compile(r"--status-all|[\w@.-]+ status"),
    "ip": re.compile(
        r"(?:-\w+ )*(?:(?:a|addr|address|r|route|l|link|n|neigh|rule|maddr|netns)(?: (?:show|list|ls|get)(?: [\w.:/@-]+)*)?)"
    ),
    **dict.fromkeys(
        ("iptables", "ip6tables"), re.compile(r"(?:(?:-[LSnvx]+|--list|--line-numbers|-t \w+|[A-Z][\w-]*)(?: |$))+")
    ),
    "sysctl": re.compile(r"(?:(?:-[aneN]+|--all|--values|--names|\w[\w.*-]*)(?: |$))+"),
    "journalctl": re.compile(
        r"(?:(?:--disk-usage|--list-boots|--verify|--no-pager|-[nubpfexkr]+|\w[\w.@:-]*|_[A-Z_]+=[\w./-]+)(?: |$))+"
    ),
    "gcloud": re.compile(
        r"config set (?:core/)?(?:project|account|compute/region|compute/zone) [\w.@-]+|auth login"
        r"|run (?:services|jobs|revisions) (?:list|describe)(?: \w[\w-]*)?(?: --(?:format|region|project|limit|filter)[= ].*)?"
    ),
    "az": re.compile(r"account set (?:-s|--subscription|-n|--name) [\w-]+|login"),
    "aws": re.compile(
        r"(?:--\w+ [\w-]+ )*(?:sso login(?: --profile [\w-]+)?|eks update-kubeconfig(?: --[\w-]+ [\w-]+)*)"
    ),
    "restic": re.compile(r"unlock|(?:stats|ls|diff)(?: [\w./:-]+)*"),
    "rclone": re.compile(r"(?:md5sum|sha1sum|hashsum|tree|ncdu|listremotes|lsjson|check|cryptcheck)(?: [\w:./ -]+)?"),
    "firebase": re.compile(r"\w+:list|emulators:start(?: .*)?"),
    "heroku": re.compile(r"(?:apps|ps|releases|addons|logs|pg:info|domains|buildpacks)(?:(?: -a| --app)[ =][\w-]+)?"),
    "minikube": re.compile(r"start(?: --[\w-]+=[\w.-]+)*"),
    "supabase": re.compile(r"start"),
    "circleci": re.compile(r"diagnostic|setup|local execute(?: [\w][\w-]*)?"),
    "doppler": re.compile(r"setup(?: --[\w-]+ [\w.-]+)*"),
    "gitstats": re.compile(r"[\w./-]+ (?!/|\.\.)[\w-]+/?"),
    "nvidia-smi": re.compile(
        r"(?:(?:-[qLl]|-[idl] ?\d+|--(?:query|list)-[\w-]+(?:=[\w.,]+)?|--format=[\w,]+|-q -d \w+|topo -m"
        r"|(?:dmon|pmon)(?: -c \d+)?)(?: |$))+"
    ),
    "xmlstarlet": re.compile(r"(?!.*document)(?:sel|select|val|validate|el|elements|fo|format)(?: .*)?", re.S),
    "mysqladmin": re.compile(
        r"(?:(?:-[hPu] ?|--(?:host|port|user)=)[\w.-]+ )*(?:status|ping|processlist|extended-status|variables|version)"
    ),
    "bq": re.compile(
        r"(?:--[\w]+=[\w.:-]+ )*(?:(?:ls|show|head)(?: .*)?|query (?:--\w+=[\w.:-]+ )*--dry_run .*)", re.S
    ),
    "nix": re.compile(r"(?:build|develop|flake (?:check|show|metadata))(?: \.?#?[\w.#-]+)?"),
    "asdf": re.compile(r"install(?: [\w.-]+)*|current"),
    "mise": re.compile(r"install(?: [\w.@-]+)*|current"),
    "ansible": re.compile(r"[\w.-]+ (?:-i [\w./-]+ )?-m (?:ping|setup|debug)(?: -i [\w./-]+)?"),
}
