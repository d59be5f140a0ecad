"""Read TensorFlow files (GraphDef, MetaGraphDef, SavedModel, CostGraphDef) as graphs, without TensorFlow."""

from placewise.readers.tensorflow.file import looks_like_tensorflow
from placewise.readers.tensorflow.reader import read_tensorflow

__all__ = ["looks_like_tensorflow", "read_tensorflow"]
