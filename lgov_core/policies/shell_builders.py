"""Judges of build, test and format tools: they run what the folder says anyway, and nothing beside it."""

from __future__ import annotations

import re
import shlex
import sys

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, is_option, parse
from lgov_core.policies.shell_environment import check_make_variable
from lgov_core.policies.shell_words import UNKNOWN

#: Build, test and format tools: what they are given is checked for secrets, for places, and for code and commands.
BUILDERS = names(
    """
    make gmake cmake ctest ninja meson bazel bazelisk gradle gradlew mvn mvnw ant sbt lein scons just task gcc
    g++ cc c++ clang clang++ clang-format clang-tidy ld ar ranlib as cpp javac jar kotlinc scalac rustc
    rustfmt gofmt goimports golangci-lint staticcheck pytest py.test tox nox ruff black isort mypy pyright
    flake8 pylint bandit coverage pre-commit autopep8 yapf pyflakes pycodestyle pydocstyle vulture
    sphinx-build sphinx-quickstart mkdocs jupyter eslint prettier tsc jest vitest mocha playwright cypress
    webpack rollup vite esbuild swc babel next nuxt astro ng vue nx turbo lerna stylelint biome rubocop rspec
    rake rails phpunit phpstan swiftc xcodebuild flutter dart shellcheck shfmt yamllint markdownlint hadolint
    actionlint codespell typos tslint standard xo ava tap nyc c8 protoc buf flatc dot graphviz valgrind gcov
    lcov uvicorn gunicorn flask fastapi streamlit django-admin alembic celery hugo jekyll eleventy doxygen
    cppcheck pip-compile pip-audit safety pyinstrument py-spy snakeviz mdformat stylua luacheck ktlint detekt
    spotless ghc stack cabal elixirc mix rebar3 zig nim crystal ocamlfind dune opam-lint tsx ts-node nodemon
    concurrently lint-imports deptry hatch pdm tflint tfsec checkov kubeconform kubeval helm-docs
    terraform-docs ansible-lint djlint sqlfluff sqruff taplo cspell vale cargo-nextest trunk
    latexmk pdflatex xelatex lualatex latex bibtex biber makeindex dbt prisma mmdc
    sqlc swag gosec govulncheck ktfmt scalafmt swiftlint swiftformat elm-format ormolu fourmolu hlint
    """
)
#: Builders that run what they are pointed at.
_RUNNING = frozenset(
    names(
        """
    make gmake just task rake pytest py.test tox nox cmake ctest gradle gradlew mvn mvnw ant sbt scons jupyter tsx ts-node
    nodemon jest vitest mocha rspec rails uvicorn gunicorn flask celery alembic streamlit webpack rollup vite playwright
    latexmk pdflatex xelatex lualatex latex dbt prisma
    coverage pyinstrument py-spy valgrind ninja meson bazel bazelisk snakemake zig nim crystal dart flutter kotlinc doxygen
    """
    )
)
#: Those that are often given the names of tests, or what runs them, in a variable.
_TESTING = frozenset(names("pytest py.test jest vitest mocha rspec playwright coverage"))
#: Builders that only read what they are given, and run nothing of it.
_READING = frozenset(
    names("shellcheck yamllint hadolint actionlint typos vale cspell codespell dot graphviz gcov protoc flatc")
)
_COMPILERS = frozenset(names("gcc g++ cc c++ clang clang++ ld ar ranlib as cpp rustc ghc javac swiftc"))
#: Options that name a place to write to.
_WRITING = re.compile(
    r"--(?:basetemp|junitxml|junit-xml|cov-report|html|output-dir|output|out|out-dir|outdir|outDir|outfile|outFile"
    r"|output-file|destination|site-dir|report-log|log-file|\w+_out)(?:=|$)|-o(?=[/~.]|$)"
    r"|--?(?:cover|cpu|mem|block|mutex)profile(?:=|$)|-(?:trace|outputdir)(?:=|$)"
)
_INSTALLED = ("/usr/", "/opt/", "/bin/", "/lib/", "/nix/store/", "/Library/")
#: Options whose value names something that is installed.
_NAMING_INSTALLED = re.compile(
    r"-I|-L|-isystem|-iquote|--?\w*(?:python|compiler|prefix|sysroot|include|lib|home|jdk)[\w-]*", re.IGNORECASE
)
#: Options that take no value, so that a file may follow them.
_FLAG = re.compile(r"-[qvwilx]|--(?:fix|check|write|quiet|verbose|diff|no-cache|strict|preview|in-place|recursive)")
#: Code and commands on the command line, by tool.
_CODE = {
    **dict.fromkeys(("tsx", "ts-node"), r"-e|-p|-pe|--eval|--print"),
    "rake": r"-[eEp].*|--exec.*",
    **dict.fromkeys(("ghc", "zig"), r"-e|-E|--execute"),
    **dict.fromkeys(("crystal", "mix"), r"eval|-e|--eval"),
    **dict.fromkeys(("stack", "cabal"), r"-e|eval|script|runghc"),
    **dict.fromkeys(("mvn", "mvnw"), r".*\bexec(?:-maven-plugin)?(?::[\d.]+)?:exec|.*antrun.*|-Dexec\.executable=.*"),
    **dict.fromkeys(("make", "gmake"), r"(?s:--ev.*|-[a-z]*E.*|SHELL=.*|\.SHELLFLAGS=.*)"),
    **dict.fromkeys(
        ("gcc", "g++", "cc", "c++", "clang", "clang++", "ld", "rustc"),
        r"-fplugin.*|-wrapper.*|-specs.*|@.*|-B.*|-load|-plugin.*|(?:-C)?linker=.*",
    ),
    **dict.fromkeys(
        ("latexmk", "pdflatex", "xelatex", "lualatex", "latex"),
        r"(?s:.*\\.*)|--?(?:shell-escape|enable-write18|enable-pipes|[eEpM]|[a-z]*latex=.*|usepretex.*|pretex=.*|print=.*|use-make|output-driver.*|pvc)",
    ),
    "dbt": r"run-operation|--full-refresh|-f|clone",
    "prisma": r"(?:.*:)?reset|--force-reset|--accept-data-loss|push|execute|studio",
    "mmdc": r"-p|--puppeteerConfigFile(?:=.*)?",
    "tox": r"-x.*|--override(?:=.*)?",
    "pre-commit": r"try-repo",
    "javac": r"-J.*|@.*",
    "kotlinc": r"-e|-expression|-J.*",
    **dict.fromkeys(("bazel", "bazelisk"), r"--run_under(?:=.*)?"),
    **dict.fromkeys(("gunicorn", "flask"), rf"(?s:(?:.*=)?(?:{'|'.join(sys.stdlib_module_names)})[\w.]*:.*\(.*)"),
    "django-admin": r"shell|dbshell",
    "pylint": r"--init-hook(?:=.*)?",
    "just": r"--shell(?:=.*)?|--shell-arg(?:=.*)?|-c|--command",
    "nim": r"e|--eval(?:[=:].*)?",
    "pyinstrument": r"-c|--program(?:=.*)?",
    "rails": r"runner|r",
}
#: Tools that run a command that is handed to them, and the word after which it stands; none: it is the first operand.
_HANDING = {
    **dict.fromkeys(("stack", "cabal", "lerna", "nx", "dune"), "exec"),
    **dict.fromkeys(("hatch", "pdm", "coverage"), "run"),
    **dict.fromkeys(("valgrind", "pyinstrument"), ""),
    "py-spy": "--",
}
#: Options of these that take the next word.
_HANDING_VALUES = names(
    """
    -o --output -p --project -r --renderer --tool --suppressions --scope --since --source --omit --include --rcfile
    --data-file --context
    """
)
_OUTSIDE = re.compile(r"(?:.*:)?(?:publish.*|deploy)|gh-deploy|release:.*|uploadArchives|flush")
_MAKE_OUTSIDE = re.compile(r"(?:un)?deploy.*|publish.*|release.*|destroy.*|drop.*|nuke|wipe.*|purge.*|uninstall")
_MAKES = ("make", "gmake", "just", "task", "rake")
#: Tools whose words are things to do rather than files.
_TASKS = frozenset(
    names(
        """
    mvn mvnw gradle gradlew sbt lein lerna nx turbo mkdocs hugo dart flutter hatch pdm mix rebar3 cabal stack jekyll
    xcodebuild django-admin ant
    """
    )
)


#: What the commands of ``cmake -E`` are called in a shell.
_CMAKE_COMMANDS = {
    **{name: name for name in names("rm touch cat echo env time tar sleep true sha256sum md5sum")},
    "remove": "rm",
    "remove_directory": "rm -r",
    "copy": "cp",
    "copy_if_different": "cp",
    "copy_directory": "cp -r",
    "rename": "mv",
    "make_directory": "mkdir -p",
    "create_symlink": "ln -s",
    "compare_files": "cmp",
}


def check_programs(call: Call) -> None:
    """Refuses files and folders outside of this one for a tool that runs what it finds there."""
    _check_places(call, running=True)


def _builder(call: Call) -> None:
    call.reads(call.args)
    code = _CODE.get(call.name)
    plain = [word.partition("=")[0] for word in call.args if word.startswith("--")]
    if code is not None and any(re.fullmatch(code, word) for word in (*call.args, *plain)):
        call.refuse("code and commands on the command line are not allowed; put them into a file of this folder.")
    for word in call.args if call.name in (_RUNNING | _COMPILERS) - _TESTING else ():
        if word.startswith(UNKNOWN):  # it may be an option
            call.literal(word, "what it is given")
    if call.given.kind != "none" and _reads_program(call):
        call.refuse("what it would run comes from elsewhere; name a file of this folder.", "shell-unclear")
    if call.name not in _READING:
        call.places.work_in()
    _check_handed(call)
    _check_places(call, running=call.name in _RUNNING)
    _check_tasks(call)
    if call.name in _COMPILERS:
        given = parse(call.args, "-o")
        if "-" in call.args and call.given.kind == "stream":
            call.refuse("what it would compile comes from elsewhere; name a file of this folder.", "shell-unclear")
        for word in given.of("-o") or ["a.out"]:
            call.places.write(word)
            call.runner.builds(word, given.operands)
    for word in parse(call.args, "-f -C --directory --file --rootdir --basetemp").of("-C", "--directory", "--basetemp"):
        call.literal(word, "the folder")


def _reads_program(call: Call) -> bool:
    """Whether a tool runs what it is given to read."""
    if call.name in ("tsx", "ts-node"):
        return not [word for word in call.args if not is_option(word)] or "-" in call.args
    return call.name in _MAKES and "-" in parse(call.args, "-f --file --makefile -t").of(
        "-f", "--file", "--makefile", "-t"
    )


def _check_tasks(call: Call) -> None:
    """Refuses what reaches beyond the folder, throws data away, or comes from elsewhere."""
    operands = parse(call.args, "-C -f -j --directory --file").operands
    trying = call.args[:1] in (("-n",), ("--dry-run",), ("--just-print",))
    outside = _MAKE_OUTSIDE if call.name in _MAKES else _OUTSIDE
    for word in operands if call.name in _TASKS or (call.name in _MAKES and not trying) else ():
        if outside.fullmatch(word):
            call.refuse(f"the target {word[:40]!r} reaches beyond this folder.")
    for word in call.args if call.name in _MAKES else ():
        given = re.match(r"([A-Za-z_]\w*)\s*[:+?]{0,3}=\s*", word)
        why = check_make_variable(given[1], word[given.end() :], call.places) if given is not None else None
        if why is not None:
            call.refuse(f"{why}; leave it out.", "shell-environment")
    if call.name in _RUNNING and any(re.match(r"https?://(?!localhost|127\.)|git\+", word) for word in operands):
        call.refuse("a program from elsewhere is not run in one go.", "shell-program")
    if call.name == "rails" and any(re.search(r"db:(?:drop|reset|purge)", word) for word in call.args):
        call.refuse("this throws the database away.")


def _check_places(call: Call, *, running: bool) -> None:
    """Judges every word that names a place: what is run lies in this folder, what is written where it may be."""
    before = ""
    for word in call.args:
        glued = word.startswith("-")
        value = word.partition("=")[2] or re.sub(r"^-[A-Za-z](?=[/~.])", "", word) if glued else word
        value = value if value.startswith("/") or not glued else value.rpartition("=")[2]
        previous, before = before, word
        emptied = "--basetemp" in (previous, word.partition("=")[0])
        if emptied and value != "--basetemp":
            call.places.delete(value, recursive=True)
        label = call.name in ("bazel", "bazelisk") and value.startswith("//")
        if label or not (value.startswith("/") or ".." in value.split("/")):
            continue
        if _WRITING.match(word) or _WRITING.fullmatch(previous):
            call.places.write(value)
        elif call.name == "cmake" and value == ".." and call.places.stands_below():
            continue  # from the build folder that the text went to
        else:
            of_option = glued or (is_option(previous) and _FLAG.fullmatch(previous) is None)
            _check_place(call, value, previous, running=running, of_option=of_option, glued=glued)


def _check_place(call: Call, value: str, previous: str, *, running: bool, of_option: bool, glued: bool) -> None:
    installed = running or glued or call.name in _COMPILERS or _NAMING_INSTALLED.fullmatch(previous) is not None
    if installed and value.startswith(_INSTALLED):
        return
    reading = call.name in _READING and not {"-w", "--write-changes"} & set(call.args)
    if running or (of_option and (glued or not reading)):
        call.places.script(value)
    elif not reading and not call.places.holds(value):  # a file that may be changed
        call.places.write(value)


# ------------------------------------------------------------------ commands that are handed on


def _check_handed(call: Call) -> None:
    """Judges what a tool runs that is handed to it on the command line."""
    if call.name == "cmake" and call.args[:1] == ("-E",):
        _cmake_command(call, list(call.args[1:]))
    elif call.name == "cmake" and "--" in call.args:
        call.runner.run(["make", *call.args[call.args.index("--") + 1 :]], call.given)
    elif call.name == "nodemon":
        given = parse(call.args, "-x --exec -w --watch -e --ext")
        for word in given.of("-x", "--exec"):
            call.runner.script(f"{call.literal(word, 'the command')} {shlex.join(given.operands[:1])}")
    elif call.name == "concurrently":
        for word in parse(
            call.args, "-n --names -c --prefix-colors -p --prefix -s --success --max-processes -m"
        ).operands:
            if re.match(r"(?:npm|yarn|pnpm|bun|node|deno):", word) is None:
                call.runner.script(call.literal(word, "the command"))
    elif (mark := _HANDING.get(call.name)) is not None and (not mark or mark in call.args):
        _run(call, list(call.args[call.args.index(mark) + 1 :]) if mark else list(call.args))


def _run(call: Call, words: list[str]) -> None:
    """Judges a command behind the options of the tool that runs it; a name nobody knows is a script of the folder."""
    from lgov_core.policies.shell_known import JUDGES, plain_name

    module = False
    while words and is_option(words[0]):
        module = module or words[0] in ("-m", "--module")
        words = words[2:] if words[0] in _HANDING_VALUES else words[1:]
    if not words:
        return
    if module or words[0].endswith(".py"):
        call.runner.run(["python", *(["-m"] if module else []), *words], call.given)
    elif "/" in words[0]:
        call.places.script(words[0])
    elif UNKNOWN in words[0] or plain_name(words[0]) in JUDGES:
        call.runner.run(words, call.given)


def _cmake_command(call: Call, words: list[str]) -> None:
    """``cmake -E``: the commands of a shell under other names."""
    if words[:1] == ["capabilities"]:
        return
    if not words or words[0] not in _CMAKE_COMMANDS:
        call.refuse(f"-E {''.join(words[:1])[:20]} is not known here.")
    call.runner.run([*_CMAKE_COMMANDS[words[0]].split(), *words[1:]], call.given)


BUILDER_JUDGES: dict[str, Judge] = dict.fromkeys(BUILDERS, _builder)
