"""Where the numbers of a page were measured, as `describe_environment` found it."""

from typing import Any

TIES = {
    "loss": "of equal ones that of the lower validation loss, then the earlier",
    "first": "of equal ones the first",
}
"""Which epoch has the best validation accuracy, by training.ties."""


def measured_on(environment: dict[str, Any]) -> str:
    """When, with which versions and on what, without a full stop."""
    versions = environment["versions"]
    return (
        f"{environment['date']}, commit {environment['commit']}, torch {versions['torch']}, "
        f"Python {versions['python']}, {device_name(environment['hardware'])}"
    )


def device_name(hardware: dict[str, Any]) -> str:
    """The GPU, or the processor if there was none."""
    return str(hardware["gpu"] or processor_name(hardware))


def processor_name(hardware: dict[str, Any]) -> str:
    """The processor and its cores."""
    return f"{hardware['processor']} with {hardware['cpu_cores']} cores"
