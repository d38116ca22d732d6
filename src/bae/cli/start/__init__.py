"""Fields from what somebody types: the start node of a run from -i, --set and questions
(`node.py`), and one field at a time for gates and secrets (`typed.py` reads it, `questions.py` asks
for it)."""
