"""Text as a voice can say it.

Owns: what happens to markup, symbols, foreign scripts and over-long words before a voice sees them. Called by: the
voices. Never: adds words that the text does not stand for, or knows a voice; numbers, money and abbreviations are left
to the voices, which read them by themselves.
"""

from __future__ import annotations

import re
import unicodedata

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2212", "-"),
        "\u2026": ".",
        "\u00d7": " times ",
        "\u00f7": " divided by ",
        "\u00b0": " degrees ",
        "\u00df": "ss",
        "\u00e6": "ae",
        "\u00c6": "Ae",
        "\u00f8": "o",
        "\u00d8": "O",
        "\u0142": "l",
        "\u0141": "L",
        "\u2044": "/",
    }
)
_SYMBOLS = {
    "&": " and ",
    "@": " at ",
    "+": " plus ",
    "=": " equals ",
    "%": " percent ",
    "<": " less than ",
    ">": " greater than ",
}
_RULES = (
    (re.compile(r"</?[A-Za-z][^<>]*>"), " "),  # markup; a voice may take it for a command
    (re.compile(r"\b(?:https?|ftp)://(?:www\.)?(\S+?)(?=[.,;:!?)\]]*(?:\s|$))", re.IGNORECASE), r"\1"),
    (re.compile(r"(?<=[A-Za-z0-9])\.(?=(?:com|org|net|io|edu|gov|co)\b)", re.IGNORECASE), " dot "),
    (re.compile(r"^\s*(?:[-*+]|#+)\s+", re.MULTILINE), ""),  # list and heading marks
    (re.compile(r"\s*(?:\u2014|\u2013|--+|\s-\s)\s*"), ", "),
    (re.compile(r"(?<![\d/])(\d+)/(\d+)(?![\d/])"), r"\1 over \2"),
    (re.compile(r"[&@+=%<>]"), lambda found: _SYMBOLS[found.group()]),
    (re.compile(r"\d{16,}"), lambda found: " ".join(found.group())),  # nobody says a number that long as one
    (re.compile(r"[^A-Za-z0-9\s.,;:!?'\"$\u00a3\u20ac()/-]"), " "),
    (re.compile(r"(?<!\d)/|/(?!\d)|(?<=\d)/(?=\d+/)|(?<=/\d\d)/|(?<=/\d)/"), " "),
    (re.compile(r"([.,;:!?])(?:\s*[.,;:!?])+(?=\s|$)"), r"\1"),
    (re.compile(r"\S{41,}"), lambda found: " ".join(re.findall(r".{1,20}", found.group()))),
    (re.compile(r"\s+"), " "),
)
_BREAKS = (re.compile(r"(?<=[.!?])\s"), re.compile(r"(?<=[,;:])\s"), re.compile(r"\s"))


def speakable(text: str) -> str:
    """Turn any text into plain words and punctuation, in ASCII but for the signs of the pound and the euro.

    Accents are dropped; what has no Latin letters at all, emoji included, is left out.

    Returns:
        The text on one line; empty when nothing in it can be said.
    """
    text = unicodedata.normalize("NFKC", text).translate(_PLAIN)
    text = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = text.strip(" ,;:")
    return text if any(one.isalnum() for one in text) else ""


def pieces(text: str, longest: int) -> list[str]:
    """Cut what :func:`speakable` gave into pieces of at most ``longest`` characters, after punctuation where it can be."""
    found = []
    while len(text) > longest:
        for pattern in _BREAKS:
            cuts = [match.end() for match in pattern.finditer(text, 0, longest + 1)]
            if cuts:
                break
        else:
            cuts = [longest]
        found.append(text[: cuts[-1]].strip())
        text = text[cuts[-1] :].strip()
    found.append(text)
    return [piece for piece in found if any(one.isalnum() for one in piece)]
