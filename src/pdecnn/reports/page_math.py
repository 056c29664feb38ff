"""The equations of `diagnostics.latex` as HTML."""

import re
from collections.abc import Iterator

from pdecnn.reports.page_html import Markup, join, tag

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\,|[A-Za-z]|[0-9.]+|[{}()^_+\-=,&]")
_SYMBOLS = {
    r"\partial": "∂",
    r"\top": "\N{DOWN TACK}",
    r"\sigma": "\N{GREEK SMALL LETTER SIGMA}",
    r"\max": "max",
    r"\tanh": "tanh",
    r"\cdot": "·",
    r"\quad": "\u2003",
    r"\,": "\u2009",
}
_SPACED = {"=": "=", "+": "+", "-": "\N{MINUS SIGN}"}
_UPRIGHT = (r"\mathrm", r"\text", r"\mathcal")
_SCRIPT = {"N": "\N{MATHEMATICAL SCRIPT CAPITAL N}"}
_BEFORE_SIGNS = (None, "=", "(", "{")
_DROPPED = (r"\left", r"\right", "&")


def equations_of(latex: str) -> list[str]:
    """The lines of an `aligned` environment that say the differential equation itself."""
    lines = latex.removeprefix("\\begin{aligned}\n").removesuffix("\n\\end{aligned}")
    return [line for line in lines.split(" \\\\\n") if line.startswith(r"\partial_t")]


def equation_to_html(latex: str) -> Markup:
    """The part of LaTeX that `diagnostics.latex` writes; anything else is an error.

    Letters with what stands below and above them need no more than HTML, which looks the same
    everywhere; MathML needs a font that not every machine has.
    """
    return tag("p", _parts(_Stream(latex), until=None))


class _Stream:
    """Tokens one by one; `text` and `mathrm` take the letters of their braces as they are."""

    def __init__(self, latex: str) -> None:
        self.latex, self.place = latex, 0

    def next(self) -> str | None:
        while self.place < len(self.latex) and self.latex[self.place] == " ":
            self.place += 1
        if self.place == len(self.latex):
            return None
        found = _TOKEN.match(self.latex, self.place)
        if found is None:
            raise ValueError(f"no HTML for {self.latex[self.place :][:20]!r}")
        self.place = found.end()
        return found[0]

    def peek(self) -> str | None:
        place = self.place
        token = self.next()
        self.place = place
        return token

    def braces(self) -> str:
        end = self.latex.index("}", self.place)
        text = self.latex[self.place + 1 : end]
        self.place = end + 1
        return text


def _parts(stream: _Stream, until: str | None) -> Iterator[Markup]:
    before = None
    while (token := stream.next()) != until:
        assert token is not None, "braces that do not close"
        if token == "-" and before in _BEFORE_SIGNS:
            yield Markup(_SPACED["-"])
        elif token not in _DROPPED:
            yield _scripted(_atom(token, stream), stream)
        before = token


def _scripted(base: Markup, stream: _Stream) -> Markup:
    """The atom with what stands below and above it."""
    parts = [base]
    while stream.peek() in ("_", "^"):
        element = "sub" if stream.next() == "_" else "sup"
        token = stream.next()
        assert token is not None, "a script without content"
        parts.append(tag(element, _atom(token, stream)))
    return join(parts)


def _atom(token: str, stream: _Stream) -> Markup:
    if token == "{":
        return join(_parts(stream, until="}"))
    if token in _UPRIGHT:
        text = stream.braces()
        return join([_SCRIPT[text] if token == r"\mathcal" else text])
    if token in _SYMBOLS:
        return join([_SYMBOLS[token]])
    if token in _SPACED:
        return join([f" {_SPACED[token]} "])
    if token.isalpha():
        return tag("i", token)
    if token[0] in "0123456789(),":
        return join([token + " " if token == "," else token])
    raise ValueError(f"no HTML for {token!r}")
