"""Feed-forward layers: what each token computes alone."""
