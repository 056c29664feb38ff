"""
A signal in one dimension
=========================

Blocks work in one, two and three dimensions. Here a Hamiltonian network tells tones from rising
and falling chirps and from warbles, in as much noise as signal. From Python a run is a config, a
call and a folder.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from chirps import CLASSES, make_signals

import pdecnn

signals, labels = make_signals(600, seed=0)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "chirps.npz"
    np.savez(path, x=signals, y=labels, class_names=np.array(CLASSES))
    config = pdecnn.recipe("hamiltonian_signals").with_settings(
        {"data.folder": str(path), "training.epochs": 10, "training.num_threads": 1}
    )
    run = pdecnn.train(config, output=Path(folder) / "run", device="cpu")
    found = pdecnn.evaluate(run)
print(f"test accuracy {found['accuracy']:.3f}, by chance {1 / len(CLASSES):.3f}")

figure, axes = plt.subplots(2, 4, figsize=(10, 3.6), layout="constrained", sharex=True)
time = np.arange(signals.shape[1])
for label, name in enumerate(CLASSES):
    signal = signals[label]
    axes[0, label].plot(time, signal, linewidth=0.8)
    axes[0, label].set(title=f"{name}: {found['per_class'][name]:.0%} right", yticks=[])
    axes[1, label].specgram(signal, NFFT=32, noverlap=28, Fs=1, cmap="magma")
    axes[1, label].set(xlabel="sample", yticks=[])
axes[0, 0].set_ylabel("signal")
axes[1, 0].set_ylabel("frequency")
plt.show()
