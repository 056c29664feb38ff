"""Reports: figures and tables made from run directories alone."""

from pdecnn.reports.figures import draw_run_figures as draw_run_figures
from pdecnn.reports.paper import draw_paper as draw_paper
