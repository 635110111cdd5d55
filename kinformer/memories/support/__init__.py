"""What memories stand on: the files of a datastore, and what is read to fill them."""
