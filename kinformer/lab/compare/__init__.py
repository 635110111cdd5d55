"""Members side by side: sizes brought to one count of parameters, samples, and cost against length."""
