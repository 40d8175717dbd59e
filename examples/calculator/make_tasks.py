"""Writes the calculator's tasks and its few demonstrations: `python make_tasks.py [FOLDER]`.

Word problems whose numbers are too large to work out in a small model's head. Training never sees a held-out name or operand: an operand n
is held out iff n % 7 == 3. Set A has the training phrasings, set B phrasings of its own. The same seed gives the same bytes.
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent import CALCULATOR, SYSTEM, call_tool  # type: ignore[import-not-found]  # the file beside this one

SEED = 7
TRAIN, HELD_OUT, DEMONSTRATIONS = 1400, 128, 48

EXPRESSIONS = {"add": "{a} + {b}", "subtract": "{a} - {b}", "multiply": "{a} * {b}"}

PHRASINGS = {
    "add": [
        "What is {a} plus {b}?",
        "{name} has {a} {items} and gets {b} more. How many {items} does {name} have now?",
        "{name} counted {a} {items} in May and {b} in June. How many is that in all?",
        "A depot holds {a} {items}. {name} delivers another {b}. How many are there then?",
        "{name} sold {a} {items} and {friend} sold {b}. How many did they sell together?",
        "{name} walked {a} steps before lunch and {b} after. How many steps were walked that day?",
        "One box has {a} {items}, another has {b}. How many {items} are in both?",
        "{name} saved {a} dollars last year and {b} this year. What is the total?",
        "A farm picked {a} {items} on Monday and {b} on Tuesday. How many did it pick?",
    ],
    "subtract": [
        "What is {a} minus {b}?",
        "{name} had {a} {items} and gave away {b}. How many are left?",
        "A shop had {a} {items} and sold {b}. How many remain?",
        "{name} has {a} {items}; {friend} has {b}. How many more does {name} have?",
        "A tank held {a} liters and lost {b}. How many liters are in it now?",
        "Of {a} {items}, {b} were broken. How many were whole?",
        "{name} needs {a} dollars and has {b}. How much is missing?",
        "{name} bought {a} {items} and returned {b}. How many did {name} keep?",
        "{name} must pack {a} {items} and has packed {b}. How many still to go?",
    ],
    "multiply": [
        "What is {a} times {b}?",
        "{name} fills {a} boxes with {b} {items} each. How many {items} is that?",
        "There are {a} shelves with {b} {items} on each. How many {items} are there?",
        "{name} earns {a} dollars a day. How much is that in {b} days?",
        "A printer makes {a} pages an hour. How many does it make in {b} hours?",
        "One crate weighs {a} kilos. What do {b} crates weigh?",
        "Each of {a} workers makes {b} {items}. How many do they make?",
        "{items} cost {a} cents each. {name} buys {b}. How many cents is that?",
        "{name} stacks {b} piles of {a} {items}. How many {items} are in the piles?",
    ],
}

UNSEEN_PHRASINGS = {
    "add": [
        "A town of {a} people grows by {b}. How many people live there now?",
        "{name} drove {a} meters, then {b} meters. How far was that altogether?",
        "If you put {a} {items} with {b} {items}, how many do you get?",
        "{friend} brings {b} {items} to the {a} that {name} has. Count them all.",
    ],
    "subtract": [
        "From a stock of {a} {items}, {name} takes {b}. What is left of the stock?",
        "{a} tickets were printed and {b} were used. How many were not used?",
        "{name} lost {b} of {a} {items}. How many are still there?",
        "{name} owed {a} dollars and paid back {b}. How much is still owed?",
    ],
    "multiply": [
        "A train makes {a} trips with {b} seats each. How many seats is that in all?",
        "{name} plants {a} rows of {b} trees. How many trees are planted?",
        "Every one of {a} buses carries {b} {items}. How many {items} are carried?",
        "{friend} sells {a} tickets every week for {b} weeks. How many are sold?",
    ],
}

# The demonstrations show how a tool call looks, on bare sums of every operation and a few stories of addition. The other stories are left
# to learn.
DEMONSTRATED = {operation: phrasings[:1] for operation, phrasings in PHRASINGS.items()} | {"add": PHRASINGS["add"][:4]}

NAMES = ["Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jack", "Kate", "Leo", "Mia", "Noah", "Olga", "Paul"]
HELD_OUT_NAMES = ["Quinn", "Rosa", "Sam", "Tara", "Uma", "Victor", "Wendy", "Yusuf"]
ITEMS = ["apples", "books", "coins", "cards", "eggs", "nails", "pens", "stamps", "stones", "tiles"]


def number(rng: random.Random, low: int, high: int, held_out: bool) -> int:
    while True:
        n = rng.randrange(low, high)
        if (n % 7 == 3) == held_out:
            return n


def operands(rng: random.Random, operation: str, held_out: bool) -> tuple[int, int]:
    match operation:
        case "add":
            return number(rng, 10_000, 100_000, held_out), number(rng, 1_000, 100_000, held_out)
        case "subtract":
            return number(rng, 50_000, 100_000, held_out), number(rng, 1_000, 50_000, held_out)
        case _:
            return number(rng, 1_000, 10_000, held_out), number(rng, 12, 1_000, held_out)


@dataclass(frozen=True)
class Problem:
    text: str
    operation: str
    expression: str
    answer: str

    def task(self, id: str) -> dict[str, Any]:
        return {"id": id, "domain": self.operation, "instruction": self.text, "answer": int(self.answer)}

    def demonstration(self) -> dict[str, Any]:
        """The chat in which an agent solves the problem with one tool call."""
        function = {"name": "calculator", "arguments": json.dumps({"expression": self.expression})}
        return {
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": self.text},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": "call_1", "content": self.answer},
                {"role": "assistant", "content": self.answer},
            ],
            "tools": [CALCULATOR],
        }


def make(rng: random.Random, count: int, phrasings: dict[str, list[str]], held_out: bool) -> list[Problem]:
    """`count` problems, the operations in turn, no two with the same words."""
    problems: dict[str, Problem] = {}
    operations = list(phrasings)
    while len(problems) < count:
        operation = operations[len(problems) % len(operations)]
        a, b = operands(rng, operation, held_out)
        name, friend = rng.sample(HELD_OUT_NAMES if held_out else NAMES, 2)
        text = rng.choice(phrasings[operation]).format(a=a, b=b, name=name, friend=friend, items=rng.choice(ITEMS))
        text = text[0].upper() + text[1:]
        expression = EXPRESSIONS[operation].format(a=a, b=b)
        problems[text] = Problem(text, operation, expression, call_tool("calculator", json.dumps({"expression": expression})))
    return list(problems.values())


def main(folder: Path) -> None:
    rng = random.Random(SEED)
    sets = {
        "train": make(rng, TRAIN, PHRASINGS, held_out=False),
        "heldout_a": make(rng, HELD_OUT, PHRASINGS, held_out=True),
        "heldout_b": make(rng, HELD_OUT, UNSEEN_PHRASINGS, held_out=True),
    }
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    for name, problems in sets.items():
        write(folder / "tasks" / f"{name}.jsonl", [problem.task(f"{name}-{i:04d}") for i, problem in enumerate(problems)])
    write(folder / "sft.jsonl", [problem.demonstration() for problem in make(rng, DEMONSTRATIONS, DEMONSTRATED, held_out=False)])


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
