"""Records into lines and back, through the classes of a graph: `encoding.py` and `decoding.py` are
the two ways, `values.py` and `nodes.py` say what can be kept."""
