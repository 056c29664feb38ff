"""Runs: configs, recipes, run directories, training and evaluation of runs."""

from pdecnn.runs.config import DataConfig as DataConfig
from pdecnn.runs.config import RunConfig as RunConfig
from pdecnn.runs.evaluation import evaluate as evaluate
from pdecnn.runs.evaluation import predict as predict
from pdecnn.runs.evaluation import predict_images as predict_images
from pdecnn.runs.preparation import load as load
from pdecnn.runs.recipes import list_recipes as list_recipes
from pdecnn.runs.recipes import recipe as recipe
from pdecnn.runs.recipes import resolve_run as resolve_run
from pdecnn.runs.runs import Run as Run
from pdecnn.runs.training import Listener as Listener
from pdecnn.runs.training import train as train
