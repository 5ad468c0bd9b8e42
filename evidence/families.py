"""Ten families of small tasks: six on which defaults are developed, four on which they are judged.

Written down before anything was run. Each family is played by an ordinary agent: a loop over a chat client that knows nothing
of lgov. Its model begins as a clumsy player: it has imitated a log in which each reply is the right one with a chance of
`SKILL`, and any other one otherwise. No task is both trained on and held out.

    developed   maze (steps), key (tools), bosses (search over turns), record (format), memory, note (two agents)
    judged      dial (steps), shops (tools), date (format), gate (memory and two agents)
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SKILL = 0.4
Message = dict[str, Any]
#: Asks a model for the next message of a conversation, as an agent of a name.
Ask = Callable[[list[Message], str], Message]
NAMES = ("Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Ida")
SIZES = ("big", "small", "old", "new", "flat", "thin", "fine", "good", "dark", "pale", "soft", "hard")


@dataclass(frozen=True)
class Family:
    """``draw`` makes a task. ``play`` is the agent: it returns the reward. ``right`` is the best next message of a
    conversation, ``guess`` any. ``tools`` are offered in each call, by name.
    """

    name: str
    draw: Callable[[random.Random], dict[str, Any]]
    play: Callable[[Mapping[str, Any], Ask], float]
    right: Callable[[Mapping[str, Any], Sequence[Message]], Message]
    guess: Callable[[random.Random, Mapping[str, Any], Sequence[Message]], Message]
    tool: str | None = None

    @property
    def tools(self) -> list[dict[str, Any]]:
        if self.tool is None:
            return []
        parameters = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
        return [{"type": "function", "function": {"name": self.tool, "description": "", "parameters": parameters}}]


def tasks_of(family: Family, seed: int, count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """``count`` tasks to train on, and as many others."""
    chance, drawn = random.Random(f"{family.name}/{seed}"), dict[str, dict[str, Any]]()
    while len(drawn) < 2 * count:
        task = family.draw(chance)
        drawn.setdefault(json.dumps(task), {**task, "number": len(drawn)})
    every = list(drawn.values())
    return every[:count], every[count:]


def logged(family: Family, chance: random.Random) -> list[list[Message]]:
    """The conversations of one clumsy rollout."""
    task, seen = family.draw(chance), dict[int, list[Message]]()

    def ask(messages: list[Message], agent: str) -> Message:
        seen[id(messages)] = messages
        return family.right(task, messages) if chance.random() < SKILL else family.guess(chance, task, messages)

    family.play(task, ask)
    return list(seen.values())


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(tool: str, value: str) -> Message:
    function = {"name": tool, "arguments": json.dumps({"at": value})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def said(message: Message) -> str:
    return str(message.get("content") or "").strip()


def called(message: Message) -> tuple[str, str] | None:
    """The id and the argument of the first tool call; None without one that can be read."""
    for one in message.get("tool_calls") or ():
        try:
            return one["id"], str(json.loads(one["function"]["arguments"])["at"])
        except (ValueError, LookupError, TypeError):
            return one["id"], ""
    return None


def answered(messages: list[Message], reply: Message, tell: Callable[[str], str]) -> bool:
    """Puts a reply into the conversation, with what the tool tells; returns whether a tool was called."""
    messages.append(reply)
    found = called(reply)
    for one in reply.get("tool_calls") or ():
        messages.append({"role": "tool", "tool_call_id": one["id"], "content": tell(found[1] if found else "")})
    return found is not None


def results(messages: Sequence[Message]) -> list[str]:
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


def asked(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


# ---------------------------------------------------------------------- developed

MOVES = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}


def _maze_view(at: Sequence[int], to: Sequence[int]) -> str:
    return f"at {'abc'[at[0]]}{at[1] + 1}, exit {'abc'[to[0]]}{to[1] + 1}"


def _draw_maze(chance: random.Random) -> dict[str, Any]:
    start, end = chance.sample(range(9), 2)
    return {"at": [start % 3, start // 3], "to": [end % 3, end // 3]}


def _play_maze(task: Mapping[str, Any], ask: Ask) -> float:
    at = list(task["at"])
    messages = asked(_maze_view(at, task["to"]))
    for _ in range(5):
        reply = ask(messages, "walker")
        messages.append(reply)
        step = MOVES.get(said(reply), (0, 0))
        at = [min(2, max(0, at[0] + step[0])), min(2, max(0, at[1] + step[1]))]
        if at == list(task["to"]):
            return 1.0
        messages.append({"role": "user", "content": _maze_view(at, task["to"])})
    return 0.0


def _right_in_maze(task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    view = str(messages[-1]["content"])
    (column, row), (to_column, to_row) = (("abc".index(view[at]), int(view[at + 1])) for at in (3, 12))
    if row != to_row:
        return say("south" if row < to_row else "north")
    return say("east" if column < to_column else "west")


PLACES = {"red": "kitchen", "blue": "garden", "green": "attic", "black": "cellar", "white": "hall", "brown": "barn"}


def _play_key(task: Mapping[str, Any], ask: Ask) -> float:
    place = PLACES[task["colour"]]
    messages = asked(f"The {task['size']} {task['colour']} key is lost.")
    for _ in range(2):
        answered(messages, ask(messages, "hunter"), lambda at: "the key" if at == place else "nothing")
        if results(messages)[-1:] == ["the key"]:
            return 1.0
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": "open a room"})
    return 0.0


def _draw_bosses(chance: random.Random) -> dict[str, Any]:
    names = chance.sample(NAMES[:6], 6)
    return {"who": chance.choice(names), "above": dict(zip(names, [*names[1:], names[0]], strict=True))}


def _play_bosses(task: Mapping[str, Any], ask: Ask) -> float:
    above = task["above"]
    messages = asked(f"Who is two above {task['who']}?")
    for _ in range(4):
        reply = ask(messages, "clerk")
        if not answered(messages, reply, lambda name: above.get(name, "nobody")):
            return float(said(reply) == above[above[task["who"]]])
    return 0.0


def _right_of_bosses(task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    found = results(messages)
    return say(found[-1]) if len(found) > 1 else call("above", found[-1] if found else task["who"])


def _guess_bosses(chance: random.Random, task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    name = chance.choice(NAMES[:6])
    return say(name) if chance.random() < 0.4 else call("above", name)


def _play_record(task: Mapping[str, Any], ask: Ask) -> float:
    """0.3 for JSON of the form, 1 for the right values in it."""
    messages = asked(f"JSON of: {task['name']}, aged {task['age']}")
    messages.append(ask(messages, "writer"))
    reply = said(messages[-1])
    try:
        value = json.loads(reply)
        keys = list(value) if isinstance(value, dict) else []
    except ValueError:
        return 0.0
    if keys != ["name", "age"]:
        return 0.0
    return 1.0 if value == {"name": task["name"], "age": task["age"]} else 0.3


def _guess_record(chance: random.Random, task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    name, age = chance.choice(NAMES), chance.randrange(10, 30)
    forms = ('{{"name": "{}", "age": {}}}', '{{"name": "{}", "age": {}', "{}, {}", '{{"age": {1}, "name": "{0}"}}')
    return say(chance.choice(forms).format(name, age))


def _play_memory(task: Mapping[str, Any], ask: Ask) -> float:
    messages = asked(f"Keep {task['word']} in mind.")
    for question in (f"Greet {task['name']}.", "Which word?"):
        messages.append(ask(messages, "keeper"))
        messages.append({"role": "user", "content": question})
    reply = ask(messages, "keeper")
    messages.append(reply)
    return float(said(reply) == task["word"])


def _right_of_memory(task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    return say(("yes", f"hello {task['name']}", task["word"])[len(messages) // 2])


def _guess_memory(chance: random.Random, task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    word = chance.choice(SIZES)
    return say(chance.choice(("yes", f"hello {chance.choice(NAMES)}", word, word)))


BOXES = {"sun": "first", "moon": "second", "star": "third", "leaf": "fourth", "rain": "fifth", "snow": "sixth"}


def _play_note(task: Mapping[str, Any], ask: Ask) -> float:
    """A planner sees the thing and writes a note; a worker sees the note alone and names the box."""
    planner = asked(f"thing: a {task['size']} {task['thing']}")
    planner.append(ask(planner, "planner"))
    worker = asked(f"note: {said(planner[-1])}")
    worker.append(ask(worker, "worker"))
    return float(said(worker[-1]) == BOXES[task["thing"]])


def _right_of_note(task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    text = str(messages[0]["content"])
    return say(task["thing"] if text.startswith("thing") else BOXES.get(text[6:], "first"))


def _guess_note(chance: random.Random, task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    words = BOXES if str(messages[0]["content"]).startswith("thing") else BOXES.values()
    return say(chance.choice(list(words)))


# ---------------------------------------------------------------------- judged

TURNS = {"up": 1, "down": -1, "leap": 3, "drop": -3}


def _draw_dial(chance: random.Random) -> dict[str, Any]:
    start, end = chance.sample(range(10), 2)
    return {"at": start, "to": end}


def _play_dial(task: Mapping[str, Any], ask: Ask) -> float:
    at = task["at"]
    messages = asked(f"{at} to {task['to']}")
    for _ in range(4):
        reply = ask(messages, "turner")
        messages.append(reply)
        at = min(9, max(0, at + TURNS.get(said(reply), 0)))
        if at == task["to"]:
            return 1.0
        messages.append({"role": "user", "content": f"{at} to {task['to']}"})
    return 0.0


def _right_of_dial(task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    view = str(messages[-1]["content"])
    gap = int(view[-1]) - int(view[0])
    return say("leap" if gap > 2 else "up" if gap > 0 else "drop" if gap < -2 else "down")


SHOPS = ("corner", "market", "mall", "stall")


def _draw_shops(chance: random.Random) -> dict[str, Any]:
    prices = chance.sample(range(1, 10), 2)
    return {"size": chance.choice(SIZES), "prices": dict(zip(chance.sample(SHOPS, 2), prices, strict=True))}


def _play_shops(task: Mapping[str, Any], ask: Ask) -> float:
    prices = task["prices"]
    messages = asked(f"Where is a {task['size']} hat cheaper: {', '.join(prices)}?")
    for _ in range(4):
        reply = ask(messages, "buyer")
        if not answered(messages, reply, lambda shop: f"{shop} {prices[shop]}" if shop in prices else "closed"):
            return float(said(reply) == min(prices, key=prices.__getitem__))
    return 0.0


def _right_of_shops(task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    prices, seen = task["prices"], {text.split()[0] for text in results(messages)}
    unseen = [shop for shop in prices if shop not in seen]
    return call("price", unseen[0]) if unseen else say(min(prices, key=prices.__getitem__))


def _guess_shops(chance: random.Random, task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    shop = chance.choice(list(task["prices"]) if chance.random() < 0.7 else SHOPS)
    return say(shop) if chance.random() < 0.4 else call("price", shop)


MONTHS = ("May", "June", "July", "August", "March", "April")
NUMBERS = {"May": 5, "June": 6, "July": 7, "August": 8, "March": 3, "April": 4}


def _play_date(task: Mapping[str, Any], ask: Ask) -> float:
    """0.3 for the form, 1 for the right day and month."""
    messages = asked(f"in digits: {task['month']} {task['day']}")
    messages.append(ask(messages, "writer"))
    reply = said(messages[-1])
    day, _, month = reply.partition(".")
    if not (day.isdigit() and month.isdigit()):
        return 0.0
    return 1.0 if (day, month) == (str(task["day"]), str(NUMBERS[task["month"]])) else 0.3


def _guess_date(chance: random.Random, task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    day, month = chance.randrange(1, 29), chance.randrange(3, 9)
    return say(chance.choice(("{0}.{1}", "{1}/{0}", "{0}", "{0}.")).format(day, month))


GATES = ("iron", "wood", "stone", "glass", "gold", "clay")


def _play_gate(task: Mapping[str, Any], ask: Ask) -> float:
    """A teller writes a note about a gate and its number; a guard who has the note is asked for one, then for the other."""
    teller = asked(f"the {task['gate']} gate opens at {task['hour']}")
    teller.append(ask(teller, "teller"))
    guard = asked(f"note: {said(teller[-1])}. Which gate?")
    guard.append(ask(guard, "guard"))
    guard.append({"role": "user", "content": "When?"})
    guard.append(ask(guard, "guard"))
    return 0.5 * (said(guard[1]) == task["gate"]) + 0.5 * (said(guard[3]) == str(task["hour"]))


def _right_of_gate(task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    text = str(messages[0]["content"])
    if text.startswith("the"):
        return say(f"{task['gate']} {task['hour']}")
    note = text[6:].partition(".")[0].split()
    return say(next((word for word in note if word.isdigit() == (len(messages) > 1)), "no"))


def _guess_gate(chance: random.Random, task: Mapping[str, Any], messages: Sequence[Message]) -> Message:
    gate, hour = chance.choice(GATES), str(chance.randrange(1, 25))
    if str(messages[0]["content"]).startswith("the"):
        return say(chance.choice((f"{gate} {hour}", gate, hour)))
    return say(hour if len(messages) > 1 else gate)


def _words(*words: str) -> Callable[[random.Random, Mapping[str, Any], Sequence[Message]], Message]:
    return lambda chance, task, messages: say(chance.choice(words))


DEVELOPED = (
    Family("maze", _draw_maze, _play_maze, _right_in_maze, _words(*MOVES)),
    Family(
        "key",
        lambda chance: {"colour": chance.choice(list(PLACES)), "size": chance.choice(SIZES)},
        _play_key,
        lambda task, messages: call("open", PLACES[task["colour"]]),
        lambda chance, task, messages: call("open", chance.choice(list(PLACES.values()))),
        "open",
    ),
    Family("bosses", _draw_bosses, _play_bosses, _right_of_bosses, _guess_bosses, "above"),
    Family(
        "record",
        lambda chance: {"name": chance.choice(NAMES), "age": chance.randrange(10, 30)},
        _play_record,
        lambda task, messages: say(json.dumps({"name": task["name"], "age": task["age"]})),
        _guess_record,
    ),
    Family(
        "memory",
        lambda chance: {"word": chance.choice(SIZES), "name": chance.choice(NAMES)},
        _play_memory,
        _right_of_memory,
        _guess_memory,
    ),
    Family(
        "note",
        lambda chance: {"thing": chance.choice(list(BOXES)), "size": chance.choice(SIZES)},
        _play_note,
        _right_of_note,
        _guess_note,
    ),
)
JUDGED = (
    Family("dial", _draw_dial, _play_dial, _right_of_dial, _words(*TURNS)),
    Family("shops", _draw_shops, _play_shops, _right_of_shops, _guess_shops, "price"),
    Family(
        "date",
        lambda chance: {"month": chance.choice(MONTHS), "day": chance.randrange(1, 29)},
        _play_date,
        lambda task, messages: say(f"{task['day']}.{NUMBERS[task['month']]}"),
        _guess_date,
    ),
    Family(
        "gate",
        lambda chance: {"gate": chance.choice(GATES), "hour": chance.randrange(1, 25)},
        _play_gate,
        _right_of_gate,
        _guess_gate,
    ),
)
FAMILIES = {family.name: family for family in (*DEVELOPED, *JUDGED)}
