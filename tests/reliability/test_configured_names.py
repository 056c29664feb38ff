"""Promise 10: a name in a config or checkpoint is looked up, never imported."""

import json
import sys

import pytest

import pdecnn
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.runs.config import run_config_from_dict
from pdecnn.runs.runs import Run
from tests.runs import small_config

MODULE = "promise_ten"
NAMES = (f"{MODULE}.run", f"{MODULE}:run", MODULE, f"{MODULE}.Layer", "os.system", "torch.nn.GELU")
NETWORK_NAMES = ("layer", "integrator", "normalization", "backprop", "activation")


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported."""
    (tmp_path / f"{MODULE}.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef run(*arguments): pass\nLayer = run\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    assert not (tmp_path / "ran").exists()
    assert MODULE not in sys.modules


def settings_that_are_names():
    values = small_config().to_dict()
    return [
        (group, key)
        for group in ("network", "data", "training")
        for key, value in values[group].items()
        if isinstance(value, str) or key == "freeze"
    ]


def test_the_settings_that_are_names_are_found():
    found = settings_that_are_names()
    assert {("network", key) for key in NETWORK_NAMES} <= set(found)
    assert len(found) > 12


def test_promise_10_no_configured_name_is_imported(trap):
    for group, key in settings_that_are_names():
        for name in NAMES:
            values = small_config().to_dict()
            values[group][key] = [name] if key == "freeze" else name
            with pytest.raises(ConfigError, match=r"unknown|must be"):
                run_config_from_dict(values)
            with pytest.raises(ConfigError):
                small_config(**{f"{group}__{key}": [name] if key == "freeze" else name})


@pytest.mark.parametrize("name", NAMES[:2])
def test_promise_10_recipes_models_and_weights_are_names_too(name, trap, tmp_path):
    for use in (pdecnn.recipe, pdecnn.create_model):
        with pytest.raises(ConfigError, match="unknown"):
            use(name)
    pdecnn.create_model("hamiltonian_digits", channels=(2, 2)).save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "config.json"
    (tmp_path / "saved" / "manifest.json").unlink()
    whole = json.loads(path.read_text())
    for group, key in [
        *(("network", key) for key in NETWORK_NAMES),
        ("preprocessing", "standardize"),
    ]:
        path.write_text(json.dumps(whole | {group: whole[group] | {key: name}}))
        with pytest.raises(CheckpointError):
            pdecnn.Network.from_pretrained(tmp_path / "saved")
    path.write_text(json.dumps(whole | {"library_name": name}))
    assert pdecnn.Network.from_pretrained(tmp_path / "saved")


@pytest.mark.parametrize("group", ["network", "data", "training", None])
def test_promise_10_unknown_keys_are_rejected(group, tmp_path):
    values, key = small_config().to_dict(), "_target_"
    (values if group is None else values[group])[key] = "os.system"
    with pytest.raises(ConfigError):
        run_config_from_dict(values)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Run(tmp_path).config  # noqa: B018
