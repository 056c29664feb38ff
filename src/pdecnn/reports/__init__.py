"""Reports: tables, figures and pages made from run directories."""
