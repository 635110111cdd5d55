"""Support of environments: make an environment from a specification."""
