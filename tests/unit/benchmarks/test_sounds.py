"""The page on spoken digits says what was measured, what was not, and who chose the settings."""

import pytest

from benchmarks.sounds import SEEDS, SPEAKERS, TRIALS, Job, page, settings_of
from pdecnn.files import write_json
from pdecnn.runs.recipes import recipe

ENVIRONMENT = {
    "date": "2026-01-01T00:00:00+00:00",
    "versions": {"pdecnn": "1", "python": "3.12", "torch": "2.11"},
    "hardware": {
        "system": "Linux",
        "processor": "a processor",
        "cpu_cores": 2,
        "threads": 1,
        "ranks": 1,
        "device": "cuda",
        "gpu": "a card",
    },
    "commit": "c" * 40,
    "seed": 0,
}


def write(folder, job, accuracy):
    found = {**job._asdict(), "recipe": "hamiltonian_sounds", "settings": {"data.hiss": 0.3}}
    found |= {"accuracy": accuracy, "num_weights": 1234, "seconds": 61.2}
    write_json(folder / f"{job.name}.json", found | {"environment": ENVIRONMENT})


def test_every_trial_is_a_config_that_holds_its_speaker_out():
    for trial, (dynamics, _) in TRIALS.items():
        settings = settings_of(Job(trial, "lucas", 1), "digits.npz", {"training.epochs": 2})
        config = recipe(f"{dynamics}_sounds").with_settings(settings)
        assert config.data.test_groups == ("lucas",)
        assert (config.data.validation_fraction, config.training.epochs) == (0, 2)
        config.data.augmentation()


def test_the_page_has_means_and_says_what_is_missing(tmp_path):
    for seed in SEEDS[:2]:
        write(tmp_path, Job("hiss", None, seed), 0.98 + 0.01 * seed)
    for k, name in enumerate(SPEAKERS[:4]):
        write(tmp_path, Job("hiss", name, 0), 0.8 + 0.02 * k)
    write(tmp_path, Job("recipe", "george", 0), 0.7)
    text = page(tmp_path)
    assert "Random split: 98.5% on average" in text
    assert "A new speaker: 83.0% on average" in text
    assert "Without george and jackson: 85.0%" in text
    assert "| recipe | `hamiltonian_sounds` | 1,234 | 70.0% |" in text
    assert "Not measured: seed 2 of the random split, speaker yweweler." in text
    assert "a card" in text


def test_a_folder_of_two_trials_is_refused(tmp_path):
    for trial in ("hiss", "recipe"):
        write(tmp_path, Job(trial, None, 0), 0.98)
    with pytest.raises(SystemExit, match="random splits of 2 trials"):
        page(tmp_path)
