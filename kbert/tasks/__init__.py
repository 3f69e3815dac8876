"""Files -> examples -> batches, predictions -> answers -> scores: the tasks of the paper's section 4."""
