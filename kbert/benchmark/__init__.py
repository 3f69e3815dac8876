"""kbert beside its peers: the same work in turn, each in a process of its own."""
