"""Jobs: each a function from DataFrames to a DataFrame, and what reads for them. Verbs are in `..verbs`."""
