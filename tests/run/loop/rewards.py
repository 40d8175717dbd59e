def letters(task, result):
    """The share of the reply's first characters that are lower-case letters of the alphabet's first half."""
    text = result.output[:16].ljust(16)
    return sum("a" <= char <= "m" for char in text) / 16


def strict(task, result):
    """Fails where its task says so."""
    if task.instruction == "raise":
        raise RuntimeError("the grader lost its answers")
    return float("nan") if task.instruction == "nan" else len(result.output) % 7
