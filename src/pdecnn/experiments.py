"""What 0.1 called the room of runs."""

raise ImportError("pdecnn.experiments is called pdecnn.runs since 0.2")
