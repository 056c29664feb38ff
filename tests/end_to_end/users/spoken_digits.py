"""Spoken digits as signals in an .npz file, each speaker in one part alone.

Run it in an empty folder. The "words" are synthesised: two formants a digit, moved by the voice of
the speaker. Eight speakers say four digits several times.
"""

import json

import numpy as np

import pdecnn

DIGITS = ("zero", "one", "two", "three")
FORMANTS = ((3, 9), (5, 20), (12, 16), (24, 4))
"""Cycles in a recording."""
SPEAKERS = ("anna", "bela", "carl", "dora", "emil", "fred", "gina", "hugo")
TIMES, LENGTH = 4, 64


def say(digit: int, speaker: int, time: int) -> np.ndarray:
    """One recording: the formants of the digit in a voice, with noise."""
    random = np.random.default_rng([digit, speaker, time])
    pitch = 1 + 0.02 * (speaker - len(SPEAKERS) / 2)
    axis = np.linspace(0, 1, LENGTH)
    waves = [np.sin(2 * np.pi * (pitch * f * axis + random.random())) for f in FORMANTS[digit]]
    return np.hanning(LENGTH) * sum(waves) + random.normal(0, 0.1, LENGTH)


def write_recordings() -> None:
    """digits.npz with x, y, the names of the classes and the speaker of each as its group."""
    said = [
        (digit, speaker, time)
        for digit in range(len(DIGITS))
        for speaker in range(len(SPEAKERS))
        for time in range(TIMES)
    ]
    np.savez(
        "digits.npz",
        x=np.stack([say(*one) for one in said]).astype(np.float32),
        y=np.array([digit for digit, _, _ in said]),
        group=np.array([SPEAKERS[speaker] for _, speaker, _ in said]),
        class_names=np.array(DIGITS),
    )


def main() -> None:
    """From recordings to results, which are printed as JSON."""
    write_recordings()
    config = pdecnn.recipe("hamiltonian_signals").with_settings(
        {
            "data.folder": "digits.npz",
            "network.channels": [8, 16, 16],
            "network.num_steps": 2,
            "training.epochs": 8,
            "training.batch_size": 8,
            "training.num_threads": 1,
        }
    )
    run = pdecnn.train(config, output="run")
    new = np.stack([say(digit, 0, TIMES) for digit in range(len(DIGITS))])
    found = pdecnn.predict(run.folder, new.astype(np.float32)[:, None], top=1)
    data = pdecnn.data.read_arrays("digits.npz")
    everyone = np.load("digits.npz")["group"]
    print(
        json.dumps(
            {
                "test": pdecnn.evaluate(run.folder),
                "num_recordings": len(everyone),
                "shared": len(set(data.train.groups.tolist()) & set(data.test.groups.tolist())),
                "said": [one["predictions"][0]["class"] for one in found],
            }
        )
    )


if __name__ == "__main__":
    main()
