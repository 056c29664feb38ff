"""The size of an exported page, where one sample alone would be too large."""

from pdecnn.explorer import recording
from pdecnn.explorer.answers import Explorer
from pdecnn.explorer.recording import write_recording
from tests.explorers import make_subject


def test_one_large_sample_is_written_with_fewer_channels_instead_of_more_bytes(
    tmp_path, monkeypatch
):
    path = tmp_path / "page.html"

    def written(most_bytes):
        monkeypatch.setattr(recording, "MOST_BYTES", most_bytes)
        explorer = Explorer(make_subject(channels=(32, 32), num_steps=6))
        assert write_recording([explorer], path) == 1
        return explorer.most_channels, path.stat().st_size

    channels, least = written(10)  # too few even for one channel
    assert channels == 1
    channels, size = written(least + 5000)
    assert channels < 8
    assert size <= least + 5000
