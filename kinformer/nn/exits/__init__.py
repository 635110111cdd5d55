"""Exits: rules that decide after which layer a token leaves the stack."""
