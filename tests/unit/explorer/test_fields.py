"""Networks with an answer for each pixel: the answer, and the way of the state through levels."""

import json
import re

import pytest
import torch

import pdecnn
from pdecnn.explorer.answers import Explorer, describe
from pdecnn.explorer.frames import compute_trajectory
from pdecnn.explorer.recording import write_recording
from pdecnn.explorer.subject import MOST_OF_FIELDS, open_subject
from tests.browser import watched_page
from tests.explorers import decoded, step_between_levels
from tests.unit.runs.test_denoising import config_for, write_smooth


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    for part, number, width in (("train", 10, 15), ("test", 2, MOST_OF_FIELDS[2] + 9)):
        for k in range(number):
            write_smooth(place / part / f"{k}.png", 12, width, k)
    config = config_for("second_order", place, training__epochs=1)
    return pdecnn.train(config, output=place / "run", device="cpu").folder


def all_answers(explorer):
    answers = [
        describe([explorer]),
        explorer.sample("1"),
        explorer.noise("1", 0.5),
        explorer.frame("1", 1, 1, view="difference", amount=0.5),
        explorer.reverse("1", 1),
    ]
    json.dumps(answers, allow_nan=False)
    return answers


def test_the_answer_is_that_of_the_network_whose_state_goes_on(denoiser):
    """Were a block to start anew, a wave equation's velocity would be lost between levels."""
    subject = open_subject(denoiser)
    explorer = Explorer(subject)
    _, sample, noisy, _, reverse = all_answers(explorer)
    pixels = subject.pixels(1).float() / 255
    assert pixels.shape == (1, 12, MOST_OF_FIELDS[2])
    with torch.no_grad():
        wanted = subject.network(pixels[None])[0]
    torch.testing.assert_close(compute_trajectory(subject.network, pixels).answer, wanted)
    picture = sample["answer"]  # more than 128 pixels are averaged
    seen = torch.nn.functional.avg_pool2d(wanted.clamp(0, 1), 2, ceil_mode=True)
    found = torch.from_numpy(decoded(picture).copy())
    assert (found - seen).abs().max() <= step_between_levels(picture) + 1e-3
    assert sample["probabilities"] is sample["label"] is sample["wanted"] is None
    assert noisy["answer"] != sample["answer"]
    assert reverse["reversible"]
    assert reverse["errors"][0] < 1e-3


def test_what_a_denoiser_makes_of_an_input_is_on_the_page(browser, denoiser, tmp_path):
    """With no word of classes, of which it has none, nor of a smaller input than it takes."""
    path = tmp_path / "explorer.html"
    write_recording([Explorer(open_subject(denoiser))], path)
    with watched_page(browser) as page:
        page.goto(path.as_uri())
        page.wait_for_selector("body[aria-busy=false]")
        page.wait_for_function("document.querySelectorAll('#field canvas').length === 2")
        assert page.is_visible("#field")
        assert not page.is_visible("#bars-key")
        assert not page.is_visible("#train")
        stations = page.locator("#diagram li").all_inner_texts()
        found = [re.findall(r"\w+", stations[place]) for place in (0, -1)]
        assert found == [[name, "1", "12", str(MOST_OF_FIELDS[2])] for name in ("input", "output")]
        assert page.complaints == []


def test_a_segmenter_shows_its_classes_and_those_meant(tmp_path):
    pytest.importorskip("nibabel")
    from tests.unit.runs import test_segmentation as segmentation
    from tests.volumes import write_balls

    balls = write_balls(tmp_path / "balls")
    config = segmentation.config_for("hamiltonian", balls, 3, training__epochs=1)
    run = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    _, sample, *_ = all_answers(Explorer(open_subject(run.folder)))
    assert sample["answer"]["shape"] == sample["wanted"]["shape"]
    assert sample["answer"]["shape"][0] == 3  # colours
