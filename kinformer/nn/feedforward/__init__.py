"""Feed-forward layers, which process each token separately."""
