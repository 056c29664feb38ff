"""Experiments: configs, recipes, run directories, training and evaluation of runs."""

from pdecnn.experiments.config import DataConfig as DataConfig
from pdecnn.experiments.config import RunConfig as RunConfig
from pdecnn.experiments.evaluation import evaluate as evaluate
from pdecnn.experiments.evaluation import predict as predict
from pdecnn.experiments.listener import Listener as Listener
from pdecnn.experiments.recipes import list_recipes as list_recipes
from pdecnn.experiments.recipes import recipe as recipe
from pdecnn.experiments.resolution import resolve_run as resolve_run
from pdecnn.experiments.runs import Run as Run
from pdecnn.experiments.training import train as train
from pdecnn.experiments.weights import load as load
