"""The directives `commands` and `settings`: flags and settings, from the program itself."""

from collections.abc import Iterator

import click
from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

from pdecnn.cli import app
from pdecnn.reports.terminal import setting_kind, value_text
from pdecnn.runs.config import describe_settings


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


class SettingsTable(SphinxDirective):
    """A table for each group of settings, a line each."""

    def run(self) -> list[nodes.Node]:
        """Markdown of the settings, parsed."""
        text, group = [], None
        for key, found in describe_settings(None).items():
            if (head := key.rpartition(".")[0]) != group:
                group = head
                text += ["", f"## {group or 'run'}", ""]
                text += ["| setting | accepted | default | meaning |", "|---|---|---|---|"]
            default = "must be set" if found["required"] else f"`{value_text(found['default'])}`"
            cells = (f"`{key}`", setting_kind(found), default, found["meaning"])
            text.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
        return self.parse_text_to_nodes("\n".join(text), allow_section_headings=True)


def setup(app):
    """Register the directives."""
    app.add_directive("commands", Commands)
    app.add_directive("settings", SettingsTable)
    return {"parallel_read_safe": True}
