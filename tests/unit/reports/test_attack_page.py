"""What `pdecnn attack` left in a run, as the page shows it."""

import json

import pytest

from pdecnn.reports.robustness import draw_attacks, read_attacks

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
VALUES = {
    "weights": "best",
    "num_images": 8,
    "restarts": 4,
    "num_steps": 25,
    "clean_accuracy": 0.75,
    "results": [
        {"epsilon": 0.1, "norm": "linf", "attack": "fgsm", "accuracy": 0.5},
        {"epsilon": 0.1, "norm": "linf", "attack": "worst", "accuracy": 0.25},
    ],
}

BROKEN = (
    VALUES | {"results": []},
    {key: value for key, value in VALUES.items() if key != "restarts"},
    VALUES | {"clean_accuracy": "none"},
    VALUES | {"results": [{"epsilon": [], "norm": "linf", "attack": "pgd", "accuracy": 1}]},
)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "attack"
    folder.mkdir()
    (folder / "attack_linf.json").write_text(json.dumps(VALUES))
    (folder / "attack_linf_images.png").write_bytes(PNG)
    return tmp_path


def test_accuracies_and_pairs_are_shown(run):
    text = str(draw_attacks([("run", 0, read_attacks(run, "best"))], "volume"))
    assert "On 8 test volumes, 75.00% right before any attack" in text
    assert "25.00%" in text
    assert 'src="data:image/png;base64,' in text
    assert "Clean volumes in the first row" in text


def test_without_images_there_are_no_pairs(run):
    text = str(draw_attacks([("run", 0, read_attacks(run, "best", pairs=False))], "image"))
    assert "25.00%" in text
    assert "<img" not in text


def test_other_weights_and_what_cannot_be_read_are_left_out(run):
    assert read_attacks(run, "last") == []
    (run / "attack" / "attack_linf_images.png").write_text("no picture")
    assert read_attacks(run, "best")[0].pairs is None
    for broken in ("", "[]", "{}", *map(json.dumps, BROKEN)):
        (run / "attack" / "attack_linf.json").write_text(broken)
        assert read_attacks(run, "best") == []
    assert "pdecnn attack RUN" in str(draw_attacks([("run", 0, [])], "image"))


def test_attacks_on_several_runs_share_a_chart_with_the_worst_of_each(run):
    found = read_attacks(run, "best")
    text = str(draw_attacks([("waves", 0, found), ("heat", 1, found), ("new", 2, [])], "image"))
    assert text.count('class="chart"') == 1
    assert "waves, worst" in text
    assert "heat, worst" in text
    assert "FGSM</span>" not in text
    assert "Nothing is recorded of new: " in text
