"""The playground and an exported explorer in Firefox, from the disk; Chromium sees all the rest."""

from pathlib import Path

from pdecnn.explorer.answers import explore_together
from pdecnn.explorer.recording import write_recording
from tests.explorers import make_subject

PLAYGROUND = Path(__file__).parents[2] / "docs" / "playground.html"
RIGHT, SPACE = "\ue014", " "


def test_the_playground_goes_out_and_back_and_crosses_its_bounds(firefox):
    firefox.open(PLAYGROUND.as_uri())
    firefox.press(SPACE)
    firefox.wait_until("state.at === 120")
    assert firefox.evaluate("state.out") == 120
    firefox.evaluate("document.getElementById('back').click()")
    firefox.wait_until("state.at === 0")
    assert 0 < firefox.evaluate("sides.wave.errors[0]") < 1e-5
    assert "Heat has exploded" in firefox.evaluate("document.getElementById('verdict').textContent")
    for size, words in ((0.25, "both are"), (0.26, "only the wave is"), (0.9, "neither is")):
        firefox.evaluate(f"[size.value = {size}, size.oninput()]")
        assert words in firefox.evaluate(
            "document.getElementById('size').getAttribute('aria-valuetext')"
        )
    assert firefox.complaints == []


def test_an_exported_page_plays_and_runs_backwards(firefox, tmp_path):
    page = tmp_path / "page.html"
    write_recording(
        explore_together([make_subject(one) for one in ("hamiltonian", "parabolic")]), page
    )
    firefox.open(page.as_uri())
    assert firefox.evaluate("document.querySelectorAll('article').length") == 2
    firefox.press(RIGHT)
    firefox.wait_until("document.querySelector('#components').dataset.frame === '0-1'")
    firefox.evaluate("document.getElementById('reverse').click()")
    firefox.wait_until("document.querySelector('#reverse-text').dataset.step === '0-0'")
    assert float(firefox.evaluate("document.querySelector('#reverse-text').dataset.error")) < 1e-5
    assert firefox.complaints == []
