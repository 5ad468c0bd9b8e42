"""The closed grammars of the small languages that commands take as an argument: sed, awk, jq and one SQL statement.

Each parser accepts programs that only select, change and print what they read. It raises `ShellRefusal` with the rule
``shell-code`` for anything else: what is not accepted is code. A parser never searches for what is forbidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from lgov_core.governor.options import names
from lgov_core.policies.shell.syntax import ShellRefusal, is_wild, shown

#: Characters of one program, and levels of brackets in it.
MAX_PROGRAM, MAX_LEVELS = 2_000, 40


def not_plain(language: str, what: str) -> ShellRefusal:
    """The refusal of a program that is code."""
    reason = f"The {language} program holds {shown(what)}, which is more than selecting and printing: that is code."
    return ShellRefusal("shell-code", reason)


def check_sed(text: str) -> list[str]:
    """Accepts one line of commands ``s p d q = a i c`` with addresses. No ``e``, ``w`` or ``r``, no braces.

    Returns the texts that it puts into what it reads, "" among them where it may take lines out.
    """
    reader = _Reader("sed", text)
    puts_in: list[str] = []
    while True:
        reader.skip(r"[ \t;]*")
        if reader.ended:
            return puts_in
        if reader.skip(_SED_ADDRESS) or _sed_pattern(reader):
            if reader.skip(r"[ \t]*,[ \t]*") and not (reader.skip(r"[+~]?\d+|\$") or _sed_pattern(reader)):
                raise reader.refusal()
            reader.skip(r"[ \t]*!?[ \t]*")
        if reader.skip("s"):
            puts_in.append(_sed_substitution(reader))
        elif line := reader.skip(r"[aic](?:\\|[ \t])[ \t]*[^\\\n]+"):  # all that follows is text
            return [*puts_in, line[2:], *([""] if line[0] == "c" else [])]
        elif reader.skip(r"[pd=]|q[ \t]*\d*"):
            puts_in.append("")
        else:
            raise reader.refusal()
        reader.skip(r"[ \t]*")
        if not reader.ended and not reader.skip(";"):
            raise reader.refusal()


_SED_ADDRESS = r"\d+(?:~\d+)?|\$"


def _sed_pattern(reader: _Reader) -> bool:
    """Reads an address ``/expression/``; whether there is one."""
    if not reader.skip("/"):
        return False
    _delimited(reader, "/", brackets=True)
    reader.skip("[IM]*")
    return True


def _sed_substitution(reader: _Reader) -> str:
    separator = reader.take(r"[/|#,@!:%~_+]")
    _delimited(reader, separator, brackets=True)
    replacement = _delimited(reader, separator, brackets=False)
    reader.skip(r"[gpIi\d]*")
    return replacement


def _delimited(reader: _Reader, separator: str, *, brackets: bool) -> str:
    """Reads up to the separator, which it leaves out of what it returns.

    Programs differ in whether one in brackets ends the text, so both readings must agree.
    """
    plain = rf"(?:\\[^\n]|[^\\\n{re.escape(separator)}])*"
    rest = reader.text[reader.at :]
    end = re.match(plain, rest)
    if brackets and end is not None:
        bracketed = re.match(rf"(?:\[\^?\]?[^\]\n]*\]|\\[^\n]|[^\\\n\[{re.escape(separator)}])*", rest)
        end = end if bracketed is not None and bracketed.end() == end.end() else None
    if end is None or rest[end.end() : end.end() + 1] != separator:
        raise reader.refusal()
    reader.at += end.end() + 1
    return end[0]


class _Reader:
    """A program and the place up to which it is read; ``skip`` and ``take`` read what a regular expression matches."""

    def __init__(self, language: str, text: str) -> None:
        self.language, self.text, self.at = language, text, 0
        if is_wild(text) or len(text) > MAX_PROGRAM or (language == "sed" and "\n" in text):
            raise not_plain(language, text)

    @property
    def ended(self) -> bool:
        """Returns whether all is read."""
        return self.at == len(self.text)

    def skip(self, expression: str) -> str | None:
        """Reads what matches, and returns it; None where nothing does."""
        match = re.compile(expression).match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[0]

    def take(self, expression: str) -> str:
        """Reads what matches. Raises `ShellRefusal` where nothing does."""
        taken = self.skip(expression)
        if taken is None:
            raise self.refusal()
        return taken

    def refusal(self) -> ShellRefusal:
        """The refusal of what comes next."""
        return not_plain(self.language, self.text[self.at : self.at + 30] or self.text[:30])


class _Grammar(_Reader):
    """A recursive-descent parser over a reader: ``gap`` are spaces between words, which are skipped before each of them."""

    gap = r"[ \t\n]*"

    def __init__(self, language: str, text: str) -> None:
        super().__init__(language, text)
        self._levels = 0

    def next(self, expression: str) -> str | None:
        """Reads a word of the language behind spaces; None, and nothing read, where there is another."""
        before = self.at
        self.skip(self.gap)
        taken = self.skip(expression)
        if taken is None:
            self.at = before
        return taken

    def need(self, expression: str) -> str:
        """Reads a word of the language. Raises `ShellRefusal` where there is another."""
        taken = self.next(expression)
        if taken is None:
            raise self.refusal()
        return taken

    def nested(self, read: Callable[[], None], end: str = "") -> None:
        """Reads what stands in brackets, and ``end``. Raises `ShellRefusal` beyond `MAX_LEVELS`."""
        self._levels += 1
        if self._levels > MAX_LEVELS:
            raise self.refusal()
        read()
        if end:
            self.need(end)
        self._levels -= 1

    def some(self, read: Callable[[], None], separator: str) -> None:
        """Reads one or more, with separators between them."""
        read()
        while self.next(separator):
            read()

    def name(self, words: Collection[str], *, among: bool) -> str | None:
        """Reads a name that is, or is not, one of ``words``."""
        before = self.at
        taken = self.next(r"[A-Za-z_]\w*")
        if taken is None or (taken in words) == among:
            return taken
        self.at = before
        return None

    def word(self, *words: str) -> str | None:
        """Reads one of these words, whole."""
        return self.name(words, among=True)


def check_awk(text: str) -> None:
    """Accepts rules that print fields, with conditions, variables and sums. No redirection, pipe, ``getline`` or ``system``."""
    _Awk("awk", text).program()


class _Awk(_Grammar):
    gap = r"[ \t]*"
    functions = frozenset(
        names("""
        length substr index split sub gsub match tolower toupper sprintf int sqrt exp log sin cos atan2 rand srand gensub
        strftime systime""")
    )
    #: Names that are no variables, or through which a program reads other files or its environment.
    closed = functions | frozenset(
        names("""
        BEGIN END BEGINFILE ENDFILE function func if else while for do in print printf getline next nextfile exit return
        delete break continue switch case default system close fflush ENVIRON PROCINFO SYMTAB FUNCTAB ARGV ARGC ARGIND asort
        asorti mktime and or xor compl lshift rshift strtonum bindtextdomain dcgettext dcngettext isarray typeof patsplit""")
    )

    def program(self) -> None:
        ends = r"[ \t;\n]*"
        self.skip(ends)
        while not self.ended:
            if not self.word("BEGIN", "END") and not self.at_block():
                self.some(self.condition, r",\s*")
            if self.at_block():
                self.block()
            self.skip(ends)

    def at_block(self) -> bool:
        before = self.at
        opens = self.next(r"\{") is not None
        self.at = before
        return opens

    def block(self) -> None:
        self.need(r"\{")
        self.nested(self.statements, r"\}")

    def statements(self) -> None:
        ends = r"[ \t;\n]*"
        self.skip(ends)
        while not self.ended and self.text[self.at] != "}":
            self.statement()
            before = self.at
            if not self.skip(r"[ \t]*[;\n]") and not re.match(r"[ \t]*\}", self.text[self.at :]) and self._needs_end:
                self.at = before
                raise self.refusal()
            self.skip(ends)

    _needs_end = True

    def statement(self) -> None:
        self._needs_end = True
        if self.word("print", "printf"):
            if not re.match(r"[ \t]*(?:[;\n}]|$)", self.text[self.at :]):
                self.some(self.printed, r",\s*")
        elif self.word("if", "while"):
            self.need(r"\(")
            self.nested(self.condition, r"\)")
            self.body()
            before = self.at
            self.skip(r"[ \t;\n]*")
            if self.word("else"):
                self.body()
            else:
                self.at = before
        elif self.word("for"):
            self.loop()
        elif self.word("next", "break", "continue"):
            pass
        elif self.word("exit"):
            self.next(r"\d+")
        elif self.word("delete"):
            self.variable()
        elif self.at_block():
            self.block()
            self._needs_end = False
        else:
            self.condition()

    def body(self) -> None:
        self.skip(r"[ \t\n]*")
        self.nested(self.statement)

    def loop(self) -> None:
        self.need(r"\(")
        before = self.at
        if (
            self.name(self.closed, among=False)
            and self.word("in")
            and self.name(self.closed, among=False)
            and self.next(r"\)")
        ):
            return self.body()
        self.at = before
        self.nested(self.condition, ";")
        self.nested(self.condition, ";")
        self.nested(self.condition, r"\)")
        return self.body()

    def printed(self) -> None:
        """An expression of ``print``: a ``>`` behind it would be a redirection, and is read by nothing."""
        self.expression(compares=False)

    def condition(self) -> None:
        self.expression(compares=True)

    def expression(self, *, compares: bool) -> None:
        operators = r"\|\||&&|[-+*/%^]?=(?!=)|==|!=|!~|~|<=|<" + (r"|>=?(?!>)" if compares else "")
        self.operand()
        while True:
            if self.next(operators):
                self.skip(r"\s*")
                self.operand()
            elif self.next(r"\?"):
                self.expression(compares=compares)
                self.need(":")
                self.expression(compares=compares)
            elif self.word("in"):
                if self.name(self.closed, among=False) is None:
                    raise self.refusal()
            elif self.next(r"[-+*/%^](?![-+=])"):
                self.operand()
            elif not self.juxtaposed():
                return

    def juxtaposed(self) -> bool:
        """Reads a further operand that is joined to the last one."""
        if re.match(r'[ \t]*(?:["$(!\d]|-(?!-)|[A-Za-z_]|\+\+|--)', self.text[self.at :]) is None:
            return False
        before = self.at
        if self.word("in", "else"):
            self.at = before
            return False
        self.operand()
        return True

    def operand(self) -> None:
        while self.next(r"!(?![~=])|\+\+|--|[-+$]"):
            pass
        if self.next(r"/"):
            _delimited(self, "/", brackets=True)
        elif self.next(r'"(?:\\[^\n]|[^"\\\n])*"') or self.next(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?!\w)|\.\d+(?!\w)"):
            pass
        elif self.next(r"\("):
            self.nested(lambda: self.some(self.condition, r",\s*"), r"\)")
        elif called := self.name(self.functions, among=True):
            if self.next(r"\("):
                if not self.next(r"\)"):
                    self.nested(lambda: self.some(self.condition, r",\s*"), r"\)")
            elif called != "length":
                raise self.refusal()
        else:
            self.variable()
        self.next(r"\+\+|--")

    def variable(self) -> None:
        if self.name(self.closed, among=False) is None or self.skip(r"\("):
            raise self.refusal()
        if self.skip(r"\["):
            self.nested(lambda: self.some(self.condition, r",\s*"), r"\]")


def check_jq(text: str) -> None:
    """Accepts paths, operators and the functions of a list. No ``env``, ``input``, modules, or functions of its own."""
    jq = _Jq("jq", text)
    if text.strip():
        jq.pipe()
    jq.skip(jq.gap)
    if not jq.ended:
        raise jq.refusal()


class _Jq(_Grammar):
    functions = frozenset(
        names("""
        length keys keys_unsorted values map map_values select sort sort_by group_by unique unique_by min max min_by max_by
        add any all has in contains inside index rindex indices startswith endswith split splits join test match capture scan
        sub gsub ascii_downcase ascii_upcase ltrimstr rtrimstr trim ltrim rtrim tostring tonumber type not empty range floor
        ceil sqrt round fabs abs first last nth limit reverse flatten to_entries from_entries with_entries del delpaths paths
        leaf_paths path getpath setpath pick tojson fromjson recurse objects arrays strings numbers booleans nulls scalars
        iterables now todate fromdate fromdateiso8601 todateiso8601 strftime strptime mktime gmtime date transpose walk
        explode implode utf8bytelength null true false infinite nan isvalid toarray tostream ascii""")
    )
    formats = r"@(?:text|json|csv|tsv|html|uri|base64d?|sh)\b"

    def pipe(self) -> None:
        self.alternatives()
        while self.next(r"\|(?!=)"):
            self.alternatives()

    def alternatives(self) -> None:
        self.some(self.operation, ",")

    def operation(self) -> None:
        self.some(self.term, r"//=?|[-+*/%|]=|[<>=!]=|[-+*/%=<>]|(?:and|or)\b")

    def term(self) -> None:
        self.next("-")
        if self.next(r"\.(?!\.)"):
            if not (self.skip(r"[A-Za-z_]\w*") or (self.skip('"') and self.string())):
                self.index()
        elif self.next(r"\$"):
            self.variable()
        elif self.word("if"):
            self.nested(self.conditional)
        elif self.name(self.functions, among=True):
            if self.next(r"\("):
                self.nested(lambda: self.some(self.pipe, ";"), r"\)")
        elif not (self.bracketed() or self.next(r"\.\.|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?!\w)")):
            raise self.refusal()
        self.suffixes()

    def bracketed(self) -> bool:
        """Reads a text, a format, or what stands in brackets; whether there is one."""
        if self.next('"'):
            self.string()
        elif self.next(self.formats):
            if self.next('"'):
                self.string()
        elif self.next(r"\("):
            self.nested(self.pipe, r"\)")
        elif self.next(r"\["):
            if not self.next(r"\]"):
                self.nested(self.pipe, r"\]")
        elif self.next(r"\{"):
            self.nested(self.fields)
        else:
            return False
        return True

    def suffixes(self) -> None:
        while True:
            if self.skip(r"\.(?=[A-Za-z_])"):
                self.take(r"[A-Za-z_]\w*")
            elif self.skip(r'\."'):
                self.string()
            elif self.skip(r"\.?(?=\[)") is not None:
                self.index()
            elif not self.skip(r"\?(?!//)"):
                break
        if self.word("as"):
            self.need(r"\$")
            self.variable()
            self.need(r"\|(?!=)")
            self.nested(self.pipe)

    def index(self) -> None:
        """``[...]`` behind a path, which may be missing."""
        if self.skip(r"\["):
            if self.next(r"\]"):
                return
            if not self.next(":"):
                self.nested(self.pipe)
                self.next(":")
            if not self.next(r"\]"):
                self.nested(self.pipe, r"\]")

    def variable(self) -> None:
        name = self.take(r"[A-Za-z_]\w*")
        if name == "ENV" or name.startswith("__"):
            raise self.refusal()

    def string(self) -> bool:
        """The rest of a text with its interpolations."""
        while not self.skip('"'):
            if self.skip(r"\\\("):
                self.nested(self.pipe, r"\)")
            else:
                self.take(r'\\["\\/bfnrtu]|[^"\\]+')
        return True

    def fields(self) -> None:
        while not self.next(r"\}"):
            if self.next(r"\$"):
                self.variable()
            elif self.next('"'):
                self.string()
            elif self.next(r"\("):
                self.nested(self.pipe, r"\)")
            else:
                self.need(r"[A-Za-z_]\w*|\d+")
            if self.next(":"):
                self.some(self.operation, r"\|(?!=)")
            if not self.next(","):
                self.need(r"\}")
                return

    def conditional(self) -> None:
        self.pipe()
        if not self.word("then"):
            raise self.refusal()
        self.pipe()
        while self.word("elif"):
            self.pipe()
            if not self.word("then"):
                raise self.refusal()
            self.pipe()
        if self.word("else"):
            self.pipe()
        if not self.word("end"):
            raise self.refusal()


Judge = Callable[[str, str], str | None]
_LISTINGS = {
    "sqlite": r"\.(?:tables|schema|indexes|databases)(?: \w+)?",
    "postgres": r"\\(?:d[tvisn]?|l)\+?(?: [\w.]+)?",
}


def check_sql(text: str, dialect: str, judge: Judge) -> None:
    """Accepts one SQL text that ``judge`` allows, and the commands of the programs that list tables."""
    if dialect in _LISTINGS and re.fullmatch(_LISTINGS[dialect], text):
        return
    if is_wild(text) or len(text) > MAX_PROGRAM or "\\" in text or text.lstrip()[:1] in (".", "-", ""):
        raise not_plain("SQL", text)
    reason = judge(text, dialect)
    if reason is not None:
        raise ShellRefusal("shell-sql", reason)


LANGUAGES: dict[str, Callable[[str], object]] = {"sed": check_sed, "awk": check_awk, "jq": check_jq}
