"""A user with a layer and an integrator of their own: an installed plugin, then commands alone.

python own_layer_and_integrator.py FOLDER
"""

import json
import os
import subprocess
import sys
from pathlib import Path

PLUGIN = '''
from dataclasses import dataclass

import pdecnn


@pdecnn.register_layer
class Leaky(pdecnn.AbstractLayer):
    """F(Y) = -K^T sigma(N(K Y)) - Y/10: diffusion that forgets."""

    name = "my_leaky"

    def forward(self, features):
        activated = self.activation(self.pre_activation(features))
        return self.convolution.adjoint(activated, negative=True) - features / 10


@pdecnn.register_integrator
@dataclass(frozen=True)
class Midpoint(pdecnn.AbstractIntegrator):
    """Y + dt F(Y + dt/2 F(Y)): second order."""

    name = "my_midpoint"
    order = 2

    def start(self, features, layers, step_size):
        return (features,)

    def step(self, layers, state, step_size):
        (features,) = state
        half = features + step_size / 2 * layers[0](features)
        return (features + step_size * layers[0](half),)

    def finish(self, state):
        return state[0]
'''
SETTINGS = {
    "network.layer": "my_leaky",
    "network.integrator": "my_midpoint",
    "network.channels": [8, 8],
    "network.num_steps": 2,
    "network.step_size": 0.5,
    "training.epochs": 8,
}


def install(folder: Path) -> None:
    """What `pip install` leaves of a package that declares the entry point."""
    (folder / "my_parts.py").write_text(PLUGIN)
    information = folder / "my_parts-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[pdecnn.plugins]\nmine = my_parts\n")


def main(folder: Path) -> dict[str, object]:
    """Install, train, evaluate, diagnose, report and export."""
    packages, run = folder / "packages", folder / "run"
    packages.mkdir(parents=True)
    install(packages)
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))

    def pdecnn(*arguments: object) -> str:
        words = [sys.executable, "-m", "pdecnn", *map(str, arguments)]
        done = subprocess.run(
            words, env=os.environ | {"PYTHONPATH": path}, cwd=folder, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    pdecnn("train", "parabolic_digits", "--output", run, *settings)
    result = {
        "evaluation": json.loads(pdecnn("evaluate", run, "--json")),
        "diagnosis": json.loads(pdecnn("diagnose", run, "--json")),
    }
    pdecnn("report", run, "-o", folder / "report.html", "--no-diagnosis")
    pdecnn("export", run, "--torch-export", folder / "network.pt2")
    return result


if __name__ == "__main__":
    print(main(Path(sys.argv[1]))["evaluation"])
