"""Parts of messages: suggestions for misspelled words, and lists of names."""

import difflib
from collections.abc import Iterable, Sequence


def suggest_option(words: Iterable[str], options: Iterable[str]) -> str:
    """Returns " (did you mean --a instead of --b?)" for the first misspelled option of a command line, or ""."""
    known = list(options)
    return suggest((word.partition("=")[0] for word in words if word.startswith("--")), known)


def suggest(words: Iterable[str], known: list[str]) -> str:
    """Returns " (did you mean a instead of b?)" for the first unknown word that is similar to a known one, or ""."""
    for word in words:
        if word not in known and (close := difflib.get_close_matches(word, known, 1)):
            return f" (did you mean {close[0]} instead of {word}?)"
    return ""


def list_names(names: Sequence[str], n_max: int) -> str:
    """Returns at most `n_max` names and the number of the others, such as "a, b, c and 4 more"."""
    more = f" and {len(names) - n_max} more" if len(names) > n_max else ""
    return ", ".join(names[:n_max]) + more
