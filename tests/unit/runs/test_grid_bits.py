"""Runs in mode 'exact' say their grid; runs of before, which did not, keep that of before."""

import json

import pytest

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.files import MANIFEST, write_json
from pdecnn.learning.checkpoint import FILES
from pdecnn.pde import Grid
from pdecnn.runs.config import differing_keys, run_config_from_dict
from pdecnn.runs.leveling import refine
from pdecnn.runs.recipes import resolve_run
from tests.manifests import write_manifest
from tests.runs import Killed, Recorder, fingerprint, small_config, small_options

EXACT = {
    "network__backprop": "exact",
    "network__step_size": 1e-3,
    "data__fraction": 0.05,
    "training__epochs": 2,
}


def saved_bits(folder):
    return json.loads((folder / "config.json").read_text())["network"]["grid_bits"]


def forget_grid(folder):
    """The run as it was written before networks had `grid_bits`."""
    for path in sorted(folder.rglob("config.json")):
        values = json.loads(path.read_text())
        del values["network"]["grid_bits"]
        write_json(path, values)
        if (path.parent / MANIFEST).exists():
            write_manifest(path.parent, FILES)


def kill(report):
    raise Killed


@pytest.mark.parametrize(("said", "bits"), [([], 16), (["network.grid_bits=20"], 20)])
def test_the_grid_is_a_setting_and_the_run_says_it(said, bits, tmp_path):
    folder, options = tmp_path / "run", small_options(**EXACT)
    config, _ = resolve_run(None, assignments=[*options[1::2], *said])
    pdecnn.train(config, output=folder)
    assert saved_bits(folder) == saved_bits(folder / "best") == bits
    assert pdecnn.load(folder).blocks[0].grid == Grid(bits)


def test_a_run_without_a_grid_says_none(tmp_path):
    run = pdecnn.train(small_config(training__epochs=1), output=tmp_path / "run")
    assert saved_bits(run.folder) is None


def test_steps_too_small_for_a_grid_are_refused_before_there_is_a_run():
    said = ["network.backprop=exact", "network.step_size=1e-6"]
    with pytest.raises(ConfigError, match="set grid_bits"):
        resolve_run(None, assignments=said)
    config, _ = resolve_run(None, assignments=[*said, "network.grid_bits=22"])
    assert config.network.grid_bits == 22


@pytest.mark.parametrize("backprop", ["exact", "stored"])
def test_a_run_of_before_goes_on_with_its_bits(backprop, tmp_path):
    """Though its steps would get another grid now, and the config it is resumed with has none."""
    settings = EXACT | {"network__backprop": backprop}
    before = small_config(**settings, network__grid_bits=12)
    whole = pdecnn.train(before, output=tmp_path / "whole")
    with pytest.raises(Killed):
        pdecnn.train(before, output=tmp_path / "run", listener=Recorder(on_epoch=kill))
    forget_grid(tmp_path / "run")
    run = pdecnn.train(small_config(**settings), output=tmp_path / "run", resume=True)
    expected, found = fingerprint(whole.folder), fingerprint(run.folder)
    results = ("metrics.jsonl", "summary.json", *(n for n in expected if n.endswith("safetensors")))
    assert {name: found[name] for name in results} == {name: expected[name] for name in results}
    assert pdecnn.load(run.folder).blocks[0].grid == (Grid(12) if backprop == "exact" else None)


def test_another_grid_is_another_run(tmp_path):
    pdecnn.train(small_config(**EXACT), output=tmp_path / "run")
    config = small_config(**EXACT, network__grid_bits=20)
    with pytest.raises(ConfigError, match=r"other settings \(network\.grid_bits=16\)"):
        pdecnn.train(config, output=tmp_path / "run", resume=True)


def test_a_grid_that_is_not_used_is_no_difference():
    config = small_config()
    values = config.to_dict()
    del values["network"]["grid_bits"]
    before = run_config_from_dict(values)
    assert before.network.grid_bits == 12
    assert differing_keys(config, before) == differing_keys(before, config) == []


def test_all_levels_have_the_grid_of_the_last(tmp_path):
    settings = EXACT | {
        "network__num_steps": 4,
        "network__step_size": 0.01,
        "training__level_epochs": [1, 1],
        "training__level_steps": [1, 4],
    }
    grids = []
    listener = Recorder(on_epoch=lambda _: grids.append(listener.trainer.network.blocks[0].grid))
    run = pdecnn.train(small_config(**settings), output=tmp_path / "run", listener=listener)
    assert grids == [Grid(13), Grid(13)]
    assert saved_bits(run.folder) == saved_bits(run.folder / "best") == 13
    grids.clear()
    explicit = small_config(**settings, network__grid_bits=9)
    run = pdecnn.train(explicit, output=tmp_path / "explicit", listener=listener)
    assert grids == [Grid(9), Grid(9)]


def test_a_refined_run_has_a_grid_for_its_steps(tmp_path):
    settings = EXACT | {"network__step_size": 0.02}
    run = pdecnn.train(small_config(**settings), output=tmp_path / "run")
    assert saved_bits(run.folder) == 12
    finer = refine(run, time=2, output=tmp_path / "finer")
    assert saved_bits(finer.folder) == saved_bits(finer.folder / "initial") == 13
