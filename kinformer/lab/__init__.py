"""The laboratory: data, tasks, environments, training, search, datastores, claims, cost and comparison."""
