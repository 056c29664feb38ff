"""The directive `commands`: every command and flag, from the program itself."""

from collections.abc import Iterator

import click
from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

from pdecnn.cli import app


def commands(command: click.Command, name: str = "pdecnn") -> Iterator[tuple[str, click.Command]]:
    """What one types, and the command that answers."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield name, command
    for key, below in inner.items():
        yield from commands(below, f"{name} {key}")


def row(parameter: click.Parameter) -> str:
    """A parameter as a row of a table."""
    metavar = (parameter.metavar or "VALUE").replace("|", r"\|")
    many = " ..." if parameter.multiple or parameter.nargs == -1 else ""
    if parameter.param_type_name == "argument":
        left = f"`{metavar}{many}`"
    elif parameter.is_flag:
        left = f"`{parameter.opts[0]}`"
    else:
        left = f"`{parameter.opts[0]} {metavar}`{many}"
    default = "" if parameter.default in (None, False) else f" Default: `{parameter.default}`."
    return f"| {left} | {parameter.help}{default} |"


class Commands(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        """Markdown of the commands, parsed."""
        text = []
        for name, command in commands(get_command(app)):
            rows = [row(parameter) for parameter in command.params]
            text += [f"## {name}", "", command.help or "", "", "| argument | what |", "|---|---|"]
            text += [*rows, ""]
        return self.parse_text_to_nodes("\n".join(text), allow_section_headings=True)


def setup(app):
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
