"""Pages and pictures: reports, plots and drawings of parts and runs."""
