"""Jobs go on when one fails, end in time, and are not run twice."""

import pytest

from benchmarks import campaign
from benchmarks.campaign import STATUS, finished, read_jobs, run


def test_jobs_are_lines_in_order(tmp_path):
    path = tmp_path / "jobs"
    path.write_text("# first\nb: echo 1: 2\n\na: true\n")
    assert list(read_jobs(path).items()) == [("b", "echo 1: 2"), ("a", "true")]


@pytest.mark.parametrize("line", ["echo 1", "../a: true", "a b: true", "a: true\na: true"])
def test_other_lines_are_refused(tmp_path, line):
    path = tmp_path / "jobs"
    path.write_text(line)
    with pytest.raises(SystemExit, match="job"):
        read_jobs(path)


def test_one_that_fails_stops_no_other_and_is_run_again(tmp_path):
    bad = f"test -e {tmp_path / 'now'}"
    jobs = {"bad": bad, "good": "echo $JOBS_AT_A_TIME", "late": "true"}
    assert not run(jobs, tmp_path / "out", at_a_time=2, seconds=60)
    assert finished(tmp_path / "out") == {"good", "late"}
    (tmp_path / "now").touch()
    assert run(jobs, tmp_path / "out", at_a_time=2, seconds=60)
    assert (tmp_path / "out" / "good.log").read_text() == "2\n"


def test_when_the_time_is_over_jobs_and_what_they_started_are_told_to_end(tmp_path):
    command = f"trap 'touch {tmp_path}/told; exit 3' TERM; sleep 60 & wait"
    jobs = {"long": command, "never": f"touch {tmp_path}/begun"}
    assert not run(jobs, tmp_path / "out", at_a_time=1, seconds=0.5)
    assert (tmp_path / "told").exists()
    assert not (tmp_path / "begun").exists()
    assert "long ended badly (3)" in (tmp_path / "out" / STATUS).read_text()


@pytest.mark.parametrize(("command", "said"), [("true", None), ("false", "not all ended well")])
def test_the_exit_status_says_whether_all_ended_well(command, said, tmp_path, monkeypatch):
    path = tmp_path / "jobs"
    path.write_text(f"one: {command}")
    monkeypatch.setattr("sys.argv", ["campaign", str(path), "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        campaign.main()
    assert ended.value.code is None if said is None else said in ended.value.code
