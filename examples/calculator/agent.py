"""A small calculator agent: `python agent.py "What is 48213 plus 5521?"` prints the answer.

It talks to any OpenAI-compatible endpoint: OPENAI_BASE_URL and OPENAI_API_KEY say which, OPENAI_MODEL names the model.
"""

import ast
import json
import operator
import os
import sys
from collections.abc import Callable

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

SYSTEM = "Use the calculator, then answer with the number."
MAX_CALLS = 4

CALCULATOR: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate arithmetic",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def divide(a: int, b: int) -> int:
    if a % b:
        raise ValueError(f"{a} / {b} is not a whole number")
    return a // b


OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: divide,
}


def evaluate(node: ast.expr) -> int:
    """Value of an expression of integers, + - * / // and parentheses; anything else is a ValueError."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(left), evaluate(right))
    raise ValueError("only whole numbers, + - * / // and parentheses are allowed")


def call_tool(name: str, arguments: str) -> str:
    """Run the tool the model asked for. A mistake is the model's to read and mend, so it comes back as text."""
    try:
        if name != "calculator":
            raise ValueError(f"there is no tool {name!r}")
        return str(evaluate(ast.parse(json.loads(arguments)["expression"].strip(), mode="eval").body))
    except Exception as error:
        return f"error: {error}"


def answer(question: str) -> str:
    client = OpenAI()
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(MAX_CALLS):
        completion = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=[CALCULATOR])
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.to_dict())  # type: ignore[arg-type]
        for call in message.tool_calls:
            result = call_tool(call.function.name, call.function.arguments) if call.type == "function" else "error: not a function"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "I could not work it out."


if __name__ == "__main__":
    print(answer(sys.argv[1]))
