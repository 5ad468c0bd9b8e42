"""A small generated corpus for each task, questions of two and three hops, and the log of a reader that errs.

Facts are drawn anew for every task, so that nothing learned by heart helps. A *form* is a chain of relations. All pairs of
adjacent relations of the forms that are held out occur in forms of training.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from settings.retrieval.library import Library
from settings.setting import HERE, Conversation, call, denial, forms_of, function_tool, result, says, split_of

POLICY = HERE / "retrieval" / "policy.yaml"
SYSTEM = "Answer from the passages."
TOOLS = (function_tool("search", "Search the passages.", "query"),)

FIRST = ("Ada", "Blaise", "Carl", "Emmy", "Grace", "Ivar", "Kurt", "Lise", "Max", "Nils", "Otto", "Sofia")
LAST = ("Berg", "Dahl", "Frank", "Holt", "Kern", "Lind", "Moor", "Noether", "Pohl", "Rask", "Stein", "Voss")
COLOURS = ("Blue", "Red", "Green", "White", "Black", "Silver", "Amber", "Grey", "Golden", "Violet")
BEASTS = ("Heron", "Otter", "Falcon", "Badger", "Salmon", "Raven", "Lynx", "Bear", "Hawk", "Wolf")
TOWNS = ("Arnby", "Belmar", "Corvik", "Dunholm", "Elstad", "Farsund", "Grenoa", "Hallen", "Istra", "Jarna")
RIVERS = ("Tarn", "Orel", "Vesla", "Ljung", "Mira", "Sorne", "Ulva", "Wenne")

LAKES = ("Ambo", "Brede", "Colme", "Dreen", "Eska", "Fenmar", "Gorm", "Hulde")

#: The word that asks for the end of a chain of relations.
ASKS = {"birthplace": "Where", "home": "Where", "mayor": "Who", "river": "What", "lake": "What"}
_OF_COMPANY, _OF_PERSON, _OF_TOWN = ("founder", "owner"), ("birthplace", "home"), ("mayor", "river", "lake")
#: All chains of two and three relations that begin at a company, outermost last.
FORMS = (
    *((first, second) for first in _OF_COMPANY for second in _OF_PERSON),
    *(("seat", second) for second in _OF_TOWN),
    *((first, second, third) for first in _OF_COMPANY for second in _OF_PERSON for third in _OF_TOWN),
    *(("seat", "mayor", third) for third in _OF_PERSON),
)
HELD_OUT_FORMS = (
    ("founder", "birthplace", "river"),
    ("founder", "home", "lake"),
    ("owner", "birthplace", "mayor"),
    ("owner", "home", "river"),
)
DEVELOPMENT_FORMS = (("owner", "birthplace", "lake"), ("founder", "home", "mayor"))
#: Companies, by the sum of the numbers of their two words modulo 5, that are not trained on.
VALUES = {0: "held_out", 1: "development"}

#: Shares of the log.
PRIVATE = 0.05
#: How the passages begin that nobody may read.
PRIVATE_FILE = "The private file"
STOPS_EARLY = 0.15
WRONG_SEARCH = 0.15
MADE_UP = 0.1


@dataclass(frozen=True, slots=True)
class World:
    """One task's facts: what each relation gives for each name."""

    facts: Mapping[tuple[str, str], str]

    @property
    def passages(self) -> list[str]:
        """The corpus."""
        told = [f"The {relation} of {name} is {value}." for (relation, name), value in self.facts.items()]
        people = [name for relation, name in self.facts if relation == "birthplace"]
        return told + [f"{PRIVATE_FILE} of {name} is closed." for name in people]


@dataclass(frozen=True, slots=True)
class Question:
    """A question: the chain of ``relations``, begun at ``company``."""

    company: str
    relations: tuple[str, ...]

    @property
    def text(self) -> str:
        """The question in words."""
        chain = "".join(f"the {relation} of " for relation in reversed(self.relations))
        return f"{ASKS[self.relations[-1]]} is {chain}{self.company}?"

    @property
    def split(self) -> str | None:
        """Decided by form and company alone."""
        colour, beast = self.company.split()
        kept_for = VALUES.get((COLOURS.index(colour) + BEASTS.index(beast)) % 5, "train")
        return split_of(self.relations, HELD_OUT_FORMS, DEVELOPMENT_FORMS, kept_for)


def build_world(seed: int) -> World:
    """Six companies, their founders, towns and what belongs to them; about eighty passages."""
    chance = random.Random(seed)
    facts: dict[tuple[str, str], str] = {}
    names = chance.sample([f"{first} {last}" for first in FIRST for last in LAST], 12)
    towns = chance.sample(TOWNS, 6)
    companies = companies_of(seed)
    for company in companies:
        facts["founder", company] = chance.choice(names)
        facts["owner", company] = chance.choice(names)
        facts["seat", company] = chance.choice(towns)
    for name in names:
        facts["birthplace", name] = chance.choice(towns)
        facts["home", name] = chance.choice(towns)
    for town in towns:
        facts["mayor", town] = chance.choice(names)
        facts["river", town] = chance.choice(RIVERS)
        facts["lake", town] = chance.choice(LAKES)
    return World(facts)


def companies_of(seed: int) -> list[str]:
    """The companies of a world."""
    return random.Random(f"companies/{seed}").sample([f"{c} {b}" for c in COLOURS for b in BEASTS], 6)


def draw_question(chance: random.Random, split: str) -> tuple[Question, int]:
    """A question of the given split and the seed of its world."""
    forms = forms_of(chance, split, FORMS, HELD_OUT_FORMS, DEVELOPMENT_FORMS)
    while True:
        seed = chance.randrange(10**9)
        question = Question(chance.choice(companies_of(seed)), chance.choice(forms))
        if question.split == split:
            return question, seed


def chain_of(question: Question, facts: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
    """The searches that lead to the answer, each with what it finds."""
    name, found = question.company, list[tuple[str, str]]()
    for relation in question.relations:
        query = f"{relation} of {name}"
        name = facts[relation, name]
        found.append((query, name))
    return found


def _others(relation: str) -> list[str]:
    """The other relations of the same kind of name."""
    kinds = ((*_OF_COMPANY, "seat"), _OF_PERSON, _OF_TOWN)
    return [one for kind in kinds if relation in kind for one in kind if one != relation]


class RetrievalWorld:
    """Questions with a corpus each, and the log of a reader that errs."""

    def __init__(self, folder: Path, seed: int, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._denial = denial(POLICY, "search", query="private file of Ada Berg")

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        question, seed = draw_question(chance, split)
        world = build_world(seed)
        chain = chain_of(question, world.facts)
        steps = [query for query, _ in chain]
        return {"question": question.text, "answer": chain[-1][1], "passages": world.passages, "steps": steps}

    def draw_log(self, chance: random.Random) -> Sequence[Conversation]:
        question, seed = draw_question(chance, "train")
        world = build_world(seed)
        library = Library(world.passages)
        messages: list[Mapping[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question.text},
        ]
        hops = chain_of(question, world.facts)
        if chance.random() < STOPS_EARLY:
            hops = hops[: chance.randrange(1, len(hops))]
        slip = chance.randrange(len(hops)) if chance.random() < WRONG_SEARCH else None
        private = chance.randrange(len(hops)) if chance.random() < PRIVATE else None
        for number, (query, _) in enumerate(hops):
            if number == private:
                name = query.split(" of ")[1]
                messages += [call("search", query=f"private file of {name}"), result(self._denial)]
            if number == slip:
                relation, name = query.split(" of ")
                query = f"{chance.choice(_others(relation))} of {name}"
            messages += [call("search", query=query), result("\n".join(library.best(query)))]
        said = hops[-1][1]
        if chance.random() < MADE_UP:
            said = chance.choice((*TOWNS, *RIVERS, *LAKES, f"{chance.choice(FIRST)} {chance.choice(LAST)}"))
        return [Conversation((*messages, says(f"Answer: {said}")), TOOLS)]

    def texts(self, chance: random.Random) -> Iterable[str]:
        for _ in range(100):
            yield draw_question(chance, "forms")[0].text
        yield "nothing found"


def make_world(folder: Path, seed: int, options: Mapping[str, Any]) -> RetrievalWorld:
    """The world of a seed."""
    return RetrievalWorld(folder, seed, options)
