def letters(task, result):
    """The share of the reply's first characters that are lower-case letters of the alphabet's first half."""
    text = result.output[:16].ljust(16)
    return sum("a" <= char <= "m" for char in text) / 16
