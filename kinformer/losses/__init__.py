"""Losses: auxiliary losses by the key under which layers report them, with the parameters that each one moves."""
