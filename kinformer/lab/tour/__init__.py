"""The tour: a few minutes that train, time and look at models of the library."""
