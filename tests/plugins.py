"""Installed plugins, as temporary folders on the path, and registries that forget them again."""

import sys
from pathlib import Path

from pdecnn import plugins
from pdecnn.pde import integrators, layers

EXAMPLE = (Path(__file__).parent / "plugin_example.py").read_text(encoding="utf-8")
REGISTRATION = """
from pdecnn import register_integrator, register_layer

for integrator in INTEGRATORS:
    register_integrator(type(integrator))
for layer in LAYERS:
    register_layer(layer)
"""


def install(folder, module="midpoints", source=EXAMPLE + REGISTRATION):
    """What pip leaves of a package with one module, whose import registers its parts."""
    (folder / f"{module}.py").write_text(source)
    information = folder / f"{module}_parts-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {module}-parts\nVersion: 1.0\n"
    )
    (information / "entry_points.txt").write_text(f"[pdecnn.plugins]\n{module} = {module}\n")


def forget(monkeypatch):
    """Registries as they are in a new process, until the end of the test."""
    monkeypatch.setattr(plugins, "_plugins", plugins._Plugins())
    for room, own in ((integrators, integrators.INTEGRATORS), (layers, layers.LAYERS)):
        monkeypatch.setattr(room._REGISTRY, "_parts", {part.name: part for part in own})
    for module in ("midpoints", "broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
