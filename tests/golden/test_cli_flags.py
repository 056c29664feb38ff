"""The commands and flags are a promise: growth is a decision, made by changing this list."""

from pathlib import Path

from typer.main import get_command

from pdecnn.cli import app

COMMANDS = {
    "": "--version",
    "train": """
        [RECIPE] --data DIR --output RUN --seed VALUE --set KEY=VALUE...
        --from RUN|FOLDER|FILE|MODEL --foreign --freeze PARTS... --deterministic --resume
        --device VALUE --quiet --json --debug
    """,
    "evaluate": """
        RUN|MODEL --data DIR --split NAME --noise VALUE --weights NAME --device VALUE --json
        --debug
    """,
    "predict": """
        RUN|MODEL IMAGE... --top VALUE --output DIR --force --weights NAME --device VALUE --json
        --debug
    """,
    "coarsen": """
        RUN --space FACTOR --time FACTOR --method NAME --interpolation NAME --evaluate --data DIR
        --set KEY=VALUE... --output RUN --weights NAME --device VALUE --json --debug
    """,
    "refine": """
        RUN --space FACTOR --time FACTOR --interpolation NAME --evaluate --data DIR
        --set KEY=VALUE... --output RUN --weights NAME --device VALUE --json --debug
    """,
    "reproduce": """
        TARGET --data DIR --datasets NAMES... --dynamics NAMES... --seeds VALUE --output DIR
        --quick --set KEY=VALUE... --jobs VALUE --device VALUE --quiet --json --debug
    """,
    "diagnose": """
        RUN|MODEL --data DIR --weights NAME --output DIR --full --device VALUE --json --debug
    """,
    "report": """
        RUN... --output -o FILE --data DIR... --weights NAME --images VALUE --no-diagnosis
        --device VALUE --quiet --debug
    """,
    "attack": """
        RUN|MODEL --epsilon E... --norm VALUE --method NAMES... --restarts VALUE --steps VALUE
        --seed VALUE --images VALUE --data DIR --weights NAME --output DIR --device VALUE --json
        --debug
    """,
    "certify": """
        RUN|MODEL --data DIR --radius R... --images VALUE --no-attack --weights NAME --output DIR
        --device VALUE --json --debug
    """,
    "explore": """
        RUN|MODEL [RUN|MODEL] --data DIR --weights NAME --export FILE --port VALUE --no-browser
        --device VALUE --debug
    """,
    "export": """
        RUN|FOLDER|MODEL --onnx FILE --torch-export FILE --pixels NAME --weights NAME --json
        --debug
    """,
    "recipes": "--json --debug",
    "settings": "[RECIPE] --json --debug",
    "models": "--json --debug",
    "data": "",
    "data list": "--json --debug",
    "data download": "NAME --output DIR --url VALUE --quiet --debug",
    "data verify": "NAME --data DIR --debug",
    "data pack": "DIR --output FILE --set KEY=VALUE... --force --debug",
    "bench": "--only PARTS... --output DIR --quick --device VALUE --json --debug",
}
DEFAULTS = {
    "train": {"device": "auto"},
    "evaluate": {"split": "test", "weights": "best", "device": "auto"},
    "predict": {"top": 3, "weights": "best", "device": "auto"},
    "coarsen": {
        "space": 1,
        "time": 1,
        "method": "rediscretize",
        "interpolation": "constant",
        "weights": "best",
        "device": "auto",
    },
    "refine": {
        "space": 1,
        "time": 1,
        "interpolation": "constant",
        "weights": "best",
        "device": "auto",
    },
    "reproduce": {"device": "auto"},
    "diagnose": {"weights": "best", "device": "auto"},
    "report": {
        "output": Path("report.html"),
        "weights": "best",
        "images": 12,
        "device": "auto",
    },
    "attack": {
        "norm": "linf",
        "restarts": 4,
        "steps": 25,
        "weights": "best",
        "device": "auto",
    },
    "certify": {"weights": "best", "device": "auto"},
    "explore": {"weights": "best", "device": "auto"},
    "export": {"weights": "best"},
    "data download": {"output": Path("data")},
    "data verify": {"data": Path("data")},
    "bench": {"device": "auto"},
}


def described(parameter):
    many = "..." if parameter.multiple or parameter.nargs == -1 else ""
    if parameter.param_type_name == "argument":
        name = parameter.metavar + many
        return name if parameter.required else f"[{name}]"
    if parameter.is_flag:
        return " ".join(parameter.opts)
    return f"{' '.join(parameter.opts)} {parameter.metavar or 'VALUE'}{many}"


def commands(command, name=""):
    """The command and those under it, by what one types."""
    found = {name: command}
    for key, inner in getattr(command, "commands", {}).items():
        found |= commands(inner, f"{name} {key}".strip())
    return found


def test_commands_and_flags_are_frozen():
    found = {name: command.params for name, command in commands(get_command(app)).items()}
    assert sorted(found) == sorted(COMMANDS)
    for name, parameters in found.items():
        assert " ".join(map(described, parameters)) == " ".join(COMMANDS[name].split()), name
        assert not any(parameter.secondary_opts for parameter in parameters)


def test_defaults_are_frozen():
    for name, command in commands(get_command(app)).items():
        defaults = {p.name: p.default for p in command.params if p.default not in (None, False)}
        assert defaults == DEFAULTS.get(name, {}), name


def test_every_command_and_flag_says_what_it_does():
    for command in commands(get_command(app)).values():
        assert command.help
        assert "\n" not in command.help.strip()
        for parameter in command.params:
            assert parameter.help, parameter.name
