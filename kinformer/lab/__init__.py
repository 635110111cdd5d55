"""The laboratory: data, tasks, environments, training, search, datastores, claims, costs, comparison."""
