"""A page of `pdecnn report` taken apart, as a browser would read it."""

from html.parser import HTMLParser

VOID = {"img", "input", "meta", "link", "br", "col"}


class Page(HTMLParser):
    """The tables by caption, the elements with their attributes, and the text."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tables, self.elements, self.open, self.texts = {}, [], [], []
        self.scripts = []
        self.rows, self.caption = [], ""
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.rows, self.caption = [], ""
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "table":
            self.tables.setdefault(self.caption, []).append(self.rows)

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts += [data] if self.open[-1] == "script" else []
            return
        self.texts.append(data)
        if "caption" in self.open:
            self.caption += data
        elif "th" in self.open or "td" in self.open:
            self.rows[-1][-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def attributes(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]
