"""What a model sees: the questions of a graph, the messages of each question, and the JSON schemas
of the answers."""
