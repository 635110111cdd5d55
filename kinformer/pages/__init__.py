"""Pages and pictures: what turns parts and runs into something to look at."""
