"""The page of spoken digits and its floors follow from the stored results."""

import json
from pathlib import Path
from statistics import fmean

from benchmarks import sounds
from pdecnn.runs.recipes import recipe

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "sounds"
ROWS = [json.loads(path.read_bytes()) for path in sorted(FOLDER.glob("*.json"))]


def test_the_page_is_written_from_the_stored_results():
    assert FOLDER.with_suffix(".md").read_text() == sounds.page(FOLDER)


def test_the_recipe_has_the_settings_that_were_measured():
    for row in ROWS:
        config = recipe(row["recipe"])
        assert config.with_settings(row["settings"]) == config


def test_a_random_split_and_a_new_speaker_are_known_as_well_as_is_wanted():
    random = [row["accuracy"] for row in ROWS if row["speaker"] is None]
    assert len(random) == 3
    assert min(random) >= 0.98
    speakers = {row["speaker"]: row["accuracy"] for row in ROWS if row["speaker"] is not None}
    assert set(speakers) == set(sounds.SPEAKERS)
    assert fmean(speakers.values()) >= 0.72
