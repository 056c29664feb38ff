"""HTML put together so that no text of a run can become a part of it."""

from collections.abc import Iterable, Sequence
from html import escape

_VOID = ("img", "input", "meta", "col", "br")


class Markup(str):
    """Finished HTML; any other string is text, and escaped."""

    __slots__ = ()


def tag(element: str, /, *content: object, **attributes: object) -> Markup:
    """An element. `class_`, `for_` and `aria_label` for class, for and aria-label.

    An attribute that is None or False is left out, one that is True has no value.
    """
    head = element + "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _VOID:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{join(content)}</{element}>")


def join(content: Iterable[object]) -> Markup:
    """Elements and texts one after the other; lists in lists are taken apart, None left out."""
    parts = []
    for part in content:
        if part is None:
            continue
        if isinstance(part, Markup):
            parts.append(part)
        elif isinstance(part, str):
            parts.append(Markup(escape(part)))
        elif isinstance(part, Iterable):
            parts.append(join(part))
        else:
            parts.append(Markup(escape(str(part))))
    return Markup("".join(parts))


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def table(
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    num_names: int = 1,
    caption: str,
    class_: str | None = None,
) -> Markup:
    """A table in a box that scrolls by itself; the first columns are names, the rest numbers.

    The caption is for those who do not see what is above it.
    """
    head = tag("tr", [tag("th", cell, scope="col") for cell in header])
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            [tag("td", cell, class_=None if k < num_names else "n") for k, cell in numbered(row)],
        )
        for row in rows
    ]
    inner = tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", head),
        tag("tbody", body),
        class_=f"names{num_names}" + (f" {class_}" if class_ else ""),
    )
    return scrolling(inner, caption)


def numbered(row: Sequence[object]) -> list[tuple[int, object]]:
    """The cells after the first with their places."""
    return list(enumerate(row))[1:]


def scrolling(inner: Markup, label: str) -> Markup:
    """A box that can be scrolled sideways, by the keyboard too."""
    return tag("div", inner, class_="scroll", role="region", aria_label=label, tabindex="0")


def details(title: object, *content: object, is_open: bool = False) -> Markup:
    """A part that can be opened and closed."""
    return tag("details", tag("summary", title), content, open=is_open)


def definitions(entries: Iterable[tuple[object, object]]) -> Markup:
    """Names and values; those without a value are left out."""
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in entries if value]
    return tag("dl", pairs)
