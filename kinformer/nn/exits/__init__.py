"""Exits: rules that decide after which layer a token leaves a stack of layers early."""
