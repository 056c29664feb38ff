"""Reports: tables, figures and pages made from run directories."""

import typing

if typing.TYPE_CHECKING:
    from pdecnn.reports.paper import draw_paper as draw_paper
    from pdecnn.reports.run_figures import draw_run_figures as draw_run_figures
else:

    def __getattr__(name):
        # Only when asked for: commands that draw nothing need not wait for matplotlib.
        if name == "draw_paper":
            from pdecnn.reports.paper import draw_paper

            return draw_paper
        if name == "draw_run_figures":
            from pdecnn.reports.run_figures import draw_run_figures

            return draw_run_figures
        raise AttributeError(f"module 'pdecnn.reports' has no attribute {name!r}")

    def __dir__():
        return [*globals(), "draw_paper", "draw_run_figures"]
