"""What the room of runs was called shortly before 0.1.0."""

raise ImportError("pdecnn.experiments is called pdecnn.runs")
