"""The command line: one file per command; torch is imported inside commands alone, so that --help is quick."""
