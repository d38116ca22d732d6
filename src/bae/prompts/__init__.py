"""What a model sees: the questions that a graph asks, the messages they are sent in, and the JSON
schemas of their answers."""
