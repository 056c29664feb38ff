"""Promises 9 and 10 by the syntax tree: no code that runs what a file says, anywhere."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "benchmarks", "examples")
# The unpickler for CIFAR's python files, which can call nothing (promise 13).
MAY_IMPORT_PICKLE = {"src/pdecnn/data/archive.py"}
UNPICKLERS = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve")
RUNNING = ("eval", "exec", "compile", "__import__")
NEVER_CALLED = {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
    *("importlib.util.spec_from_file_location", "imp.load_source"),
}


def find_forbidden(source, *, may_import_pickle=False):
    """What is forbidden in the source, as 'line: what'."""
    tree = ast.parse(source)
    names = _imported_names(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and not may_import_pickle:
            found += [(node, f"import {name}") for name in _unpicklers_in(node)]
        if isinstance(node, ast.Call):
            found += [(node, what) for what in _forbidden_calls(node, names)]
        # Also where it is not called: f = eval; map(exec, ...).
        if isinstance(node, ast.Name) and node.id in RUNNING and node.id not in names:
            found.append((node, node.id))
        if isinstance(node, ast.Attribute) and node.attr in ("extractall", "unpack_archive"):
            found.append((node, node.attr))
    return sorted({f"{node.lineno}: {what}" for node, what in found})


def _imported_names(tree):
    """What each name that an import binds means, in full: np -> numpy, load -> pickle.load."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                names[bound] = alias.name if alias.asname else bound
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _unpicklers_in(node):
    modules = (
        [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
    )
    return [name for name in modules if name and name.partition(".")[0] in UNPICKLERS]


def _full_name(node, names):
    """'pickle.load' for `load` that came from pickle; '' for what is no name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = _full_name(node.value, names)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _forbidden_calls(node, names):
    name = _full_name(node.func, names)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    module, _, function = name.rpartition(".")
    if module in UNPICKLERS and function in ("load", "loads", "Unpickler", "open"):
        yield name
    if name == "torch.load" and not _is(keywords.get("weights_only"), True):
        yield "torch.load without weights_only=True"
    if "weights_only" in keywords and not _is(keywords["weights_only"], True):
        yield "weights_only=False"
    if "allow_pickle" in keywords and not _is(keywords["allow_pickle"], False):
        yield "allow_pickle=True"
    if name == "numpy.load" and "allow_pickle" not in keywords:
        yield "numpy.load without allow_pickle=False"
    if "shell" in keywords and not _is(keywords["shell"], False):
        yield "shell=True"
    if name in NEVER_CALLED:
        yield name
    is_literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
    if name in ("importlib.import_module", "importlib.__import__") and not is_literal:
        yield f"{name} of what is no literal"


def _is(node, value):
    return isinstance(node, ast.Constant) and node.value is value


def python_files():
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def test_promise_09_no_source_file_has_forbidden_code():
    files = python_files()
    assert len(files) > 150
    complaints = []
    for path in files:
        name = str(path.relative_to(ROOT))
        found = find_forbidden(path.read_text(), may_import_pickle=name in MAY_IMPORT_PICKLE)
        complaints += [f"{name}:{complaint}" for complaint in found]
    assert complaints == []


def test_every_exception_is_still_needed():
    for name in MAY_IMPORT_PICKLE:
        assert find_forbidden((ROOT / name).read_text()), name


FORBIDDEN = {
    "import pickle": "import pickle",
    "from pickle import loads": "import pickle",
    "import joblib": "import joblib",
    "import marshal": "import marshal",
    "import shelve as s\ns.open('x')": "shelve.open",
    "import pickle\npickle.load(f)": "pickle.load",
    "import pickle\npickle.loads(f)": "pickle.loads",
    "import pickle as p\np.loads(f)": "pickle.loads",
    "from pickle import loads as l\nl(f)": "pickle.loads",
    "import pickle\npickle.Unpickler(f).load()": "pickle.Unpickler",
    "import torch\ntorch.load(f)": "torch.load without",
    "from torch import load\nload(f)": "torch.load without",
    "import torch\ntorch.load(f, weights_only=False)": "weights_only=False",
    "import torch\ntorch.load(f, weights_only=trusted)": "weights_only=False",
    "load(f, weights_only=False)": "weights_only=False",
    "import numpy as np\nnp.load(f, allow_pickle=True)": "allow_pickle=True",
    "import numpy as np\nnp.load(f)": "numpy.load without",
    "np.lib.format.read_array(f, allow_pickle=1)": "allow_pickle=True",
    "archive.extractall(path)": "extractall",
    "import shutil\nshutil.unpack_archive(a)": "unpack_archive",
    "eval(text)": "eval",
    "list(map(exec, texts))": "exec",
    "run = eval": "eval",
    "__import__(name)": "__import__",
    "import importlib\nimportlib.import_module(name)": "importlib.import_module of",
    "from importlib import import_module as i\ni(config['x'])": "importlib.import_module of",
    "import importlib\nimportlib.import_module('a' + b)": "importlib.import_module of",
    "from importlib import util\nutil.spec_from_file_location('a', b)": "spec_from_file_location",
    "import yaml\nyaml.load(f)": "yaml.load",
    "from yaml import unsafe_load\nunsafe_load(f)": "yaml.unsafe_load",
    "subprocess.run(command, shell=True)": "shell=True",
    "import os\nos.system(command)": "os.system",
}
ALLOWED = [
    "network.eval()",
    "torch.load(f, map_location='cpu', weights_only=True)",
    "import numpy as np\nnp.load(f, mmap_mode='r', allow_pickle=False)",
    "import importlib\nimportlib.import_module('pdecnn.fast.kernels.symmetric_shear_triton')",
    "import subprocess\nsubprocess.run(['git'], shell=False)",
    "import json\njson.load(f)",
    "import tomllib\ntomllib.loads(text)",
    "import torch\ntorch.compile(f)",
    "archive.extractfile(member)",
    "from safetensors.torch import load\nload(content)",
    "'pickle.load and eval(x) in a text'",
]


@pytest.mark.parametrize("source", FORBIDDEN)
def test_the_check_finds_what_is_forbidden(source):
    assert any(FORBIDDEN[source] in found for found in find_forbidden(source))


@pytest.mark.parametrize("source", ALLOWED)
def test_the_check_leaves_the_rest_alone(source):
    assert find_forbidden(source) == []
