"""Reports: figures and tables made from run directories alone."""
