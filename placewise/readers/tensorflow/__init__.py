"""TensorFlow: GraphDef, MetaGraphDef, SavedModel and CostGraphDef → the raw view of a graph, without TensorFlow."""

from placewise.readers.tensorflow.file import looks_like_tensorflow
from placewise.readers.tensorflow.reader import read_tensorflow

__all__ = ["looks_like_tensorflow", "read_tensorflow"]
