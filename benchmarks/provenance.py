"""Where and with what a page's numbers were measured."""

from typing import Any

from pdecnn.reports.recorded import device_name


def measured_on(environment: dict[str, Any]) -> str:
    """When, with which versions and on what, without a full stop."""
    versions = environment["versions"]
    return (
        f"{environment['date']}, commit {environment['commit']}, torch {versions['torch']}, "
        f"Python {versions['python']}, {device_name(environment['hardware'])}"
    )
