"""The laboratory: data, tasks and environments, training, search, datastores, claims, cost and comparison."""
