"""Write the TensorFlow files of tests/data/tensorflow: small models defined here, saved in every format that is read.

Needs TensorFlow (2.21 made the committed files): python scripts/make_tensorflow_graphs.py
Weights are stripped to their shapes. flops.json holds what TensorFlow's own profiler counts for a batch of 2, by kind
of op, and shapes.json what it infers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"}

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

HERE = Path(__file__).parent.parent / "tests" / "data" / "tensorflow"
LONGEST = 4096
BATCH = 2
v1, keras = tf.compat.v1, tf.keras


class Classifier(tf.Module):
    """Three residual stages of convolutions, one of them depthwise, and a dense layer: images → classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = tf.Variable(tf.zeros([7, 7, 3, 16]), name="stem")
        self.wide = [tf.Variable(tf.zeros([3, 3, 16, 16]), name=f"wide{i}") for i in range(2)]
        self.depth = tf.Variable(tf.zeros([3, 3, 16, 2]), name="depth")
        self.point = tf.Variable(tf.zeros([1, 1, 32, 16]), name="point")
        self.norm = [tf.Variable(tf.ones([16]), name=f"norm{i}") for i in range(4)]
        self.dense = tf.Variable(tf.zeros([16, 10]), name="dense")

    @tf.function
    def apply(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.nn.relu(tf.nn.conv2d(x, self.stem, 2, [[0, 0], [3, 3], [3, 3], [0, 0]]))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for kernel in self.wide:
            y = tf.nn.conv2d(x, kernel, 1, "SAME")
            y = v1.nn.fused_batch_norm(y, *self.norm, is_training=False)[0]
            x = tf.nn.relu(x + y)
        y = tf.nn.depthwise_conv2d(x, self.depth, [1, 2, 2, 1], "VALID", dilations=[1, 1])
        x = tf.nn.conv2d(tf.nn.relu6(y), self.point, 1, "VALID")
        return tf.nn.softmax(tf.reduce_mean(x, [1, 2]) @ self.dense)


class Attention(tf.Module):
    """One transformer block, its heads by einsum and by batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.into = tf.Variable(tf.zeros([64, 3, 4, 16]), name="into")
        self.back = tf.Variable(tf.zeros([4, 16, 64]), name="back")
        self.up, self.down = tf.Variable(tf.zeros([64, 256]), name="up"), tf.Variable(tf.zeros([256, 64]), name="down")

    @tf.function
    def apply(self, x: tf.Tensor) -> tf.Tensor:
        q, k, v = tf.unstack(tf.einsum("btd,dchw->cbhtw", self.normed(x), self.into))
        shares = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 4.0)
        x += tf.einsum("bhtw,hwd->btd", shares @ v, self.back)
        return x + tf.reshape(tf.nn.gelu(tf.reshape(self.normed(x), [-1, 64]) @ self.up) @ self.down, tf.shape(x))

    def normed(self, x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5)


class Learner(tf.Module):
    """A dense network that learns by gradient descent: its training step is a signature."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [tf.Variable(tf.zeros(shape), name="w") for shape in ([20, 32], [32, 32], [32, 5])]

    @tf.function(input_signature=[tf.TensorSpec([None, 20], name="x"), tf.TensorSpec([None], tf.int64, name="y")])
    def step(self, x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            for layer in self.layers[:-1]:
                x = tf.tanh(x @ layer)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x @ self.layers[-1])
            loss = tf.reduce_mean(losses)
        for layer, gradient in zip(self.layers, tape.gradient(loss, self.layers), strict=True):
            layer.assign_sub(0.1 * gradient)
        return {"loss": loss}


class RecurrentLearner(tf.Module):
    """An LSTM that learns: its gradients go back through a While, over values that the forward one has piled up."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = keras.layers.LSTM(16)
        self.lstm.build([None, 6, 8])

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 8], name="x")])
    def step(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.lstm(x) ** 2)
        learned = [variable.value for variable in self.lstm.trainable_variables]
        for variable, gradient in zip(learned, tape.gradient(loss, learned), strict=True):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss}


def recurrent() -> keras.Model:
    layers = [keras.layers.Embedding(1000, 32), keras.layers.LSTM(48, return_sequences=True), keras.layers.Dense(100)]
    return keras.Sequential([keras.Input([20], dtype="int32"), *layers])


def training(batch: int | None) -> tf.Graph:
    """Two convolutions and a dense layer with momentum, in the style of TF1, on two devices."""
    with tf.Graph().as_default() as graph:
        x, y = v1.placeholder(tf.float32, [batch, 32, 32, 3], "x"), v1.placeholder(tf.int64, [batch], "y")
        with tf.device("/device:CPU:0"):
            for number, width in enumerate((16, 32)):
                kernel = v1.get_variable(f"kernel{number}", [3, 3, x.shape[-1], width], use_resource=False)
                bias = v1.get_variable(f"bias{number}", [width], use_resource=False)
                x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 2, "SAME"), bias, name=f"biased{number}"))
        with tf.device("/device:CPU:1"):
            dense = v1.get_variable("dense", [8 * 8 * 32, 10], use_resource=False)
            logits = tf.reshape(x, [-1, 8 * 8 * 32]) @ dense
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, colocate_gradients_with_ops=True)
        v1.train.Saver()
        v1.global_variables_initializer()
    return graph


def loop_training() -> tf.Graph:
    """A recurrent cell in TF1's while loop over 12 steps, with its gradients and Adam."""
    v1.disable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        x, kernel = (
            v1.placeholder(tf.float32, [8, 12, 16], "x"),
            v1.get_variable("kernel", [48, 128], use_resource=False),
        )
        given = tf.TensorArray(tf.float32, 12).unstack(tf.transpose(x, [1, 0, 2]))

        def step(time, state, hidden, made):  # type: ignore[no-untyped-def]
            i, f, o, j = tf.split(tf.concat([given.read(time), hidden], 1) @ kernel, 4, 1)
            state = tf.sigmoid(f) * state + tf.sigmoid(i) * tf.tanh(j)
            hidden = tf.sigmoid(o) * tf.tanh(state)
            return time + 1, state, hidden, made.write(time, hidden)

        start = (0, tf.zeros([8, 32]), tf.zeros([8, 32]), tf.TensorArray(tf.float32, 12))
        *_, made = tf.while_loop(lambda time, *_: time < 12, step, start)
        v1.train.AdamOptimizer().minimize(tf.reduce_sum(made.stack() ** 2))
    v1.enable_control_flow_v2()
    return graph


def measured(graph: tf.Graph) -> tf.compat.v1.RunMetadata:
    """What TensorFlow measured in the last of five training steps."""
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    config = v1.ConfigProto(device_count={"CPU": 2}, graph_options=v1.GraphOptions(build_cost_model=1))
    with v1.Session(graph=graph, config=config) as session:
        session.run([op for op in graph.get_operations() if op.name == "init"])
        for _ in range(5):
            found = v1.RunMetadata()
            feeds = {"x:0": np.zeros([8, 32, 32, 3]), "y:0": np.zeros(8)}
            session.run("Momentum", feeds, options=options, run_metadata=found)
    return found


def frozen(function: tf.types.experimental.PolymorphicFunction, *shape: int | None, dtype=tf.float32) -> tf.Graph:
    concrete = function.get_concrete_function(tf.TensorSpec(shape, dtype))
    return convert_variables_to_constants_v2(concrete, lower_control_flow=False).graph


def flops(graph: tf.Graph) -> dict[str, int]:
    """What TensorFlow's profiler counts, by kind of op; shapes must be whole."""
    options = v1.profiler.ProfileOptionBuilder(v1.profiler.ProfileOptionBuilder.float_operation())
    with tf.Graph().as_default() as clean:  # where shapes are inferred anew
        tf.import_graph_def(graph.as_graph_def(), name="")
    root = v1.profiler.profile(clean, cmd="op", options=options.with_empty_output().build())
    found = {}
    while root.children:
        root = root.children[0]
        if root.float_ops:
            found[root.name] = root.float_ops
    return found


def shapes(proto) -> dict[str, list[int]]:  # type: ignore[no-untyped-def]
    """What TensorFlow infers for the values of a GraphDef, for a batch of 2; only whole shapes of tensors."""
    for node in proto.node:
        if node.op == "Placeholder" and node.attr["shape"].shape.dim[0].size < 0:
            node.attr["shape"].shape.dim[0].size = BATCH
    with tf.Graph().as_default() as clean:
        tf.import_graph_def(proto, name="")
    values = [value for op in clean.get_operations() for value in op.outputs]
    plain = [value for value in values if value.dtype not in (tf.variant, tf.resource)]
    return {value.name.removesuffix(":0"): value.shape.as_list() for value in plain if value.shape.is_fully_defined()}


def stripped(proto):  # type: ignore[no-untyped-def]
    """A GraphDef without the values of large constants."""
    for nodes in (proto.node, *(function.node_def for function in proto.library.function)):
        for node in nodes:
            if len(node.attr["value"].tensor.tensor_content) > LONGEST:
                node.attr["value"].tensor.tensor_content = b""
            if not node.attr["value"].ByteSize():
                del node.attr["value"]
    return proto


def save(proto, name: str) -> None:  # type: ignore[no-untyped-def]
    (HERE / name).write_bytes(proto.SerializeToString(deterministic=True))


def save_model(module: tf.Module, name: str, signatures) -> None:  # type: ignore[no-untyped-def]
    """A SavedModel's one file that matters, without the debugging tables."""
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures)
        saved = saved_model_pb2.SavedModel.FromString((Path(folder) / "saved_model.pb").read_bytes())
    for meta in saved.meta_graphs:
        meta.ClearField("object_graph_def")
        meta.graph_def.ClearField("debug_info")
        meta.meta_info_def.ClearField("stripped_op_list")
        stripped(meta.graph_def)
    (HERE / name).mkdir(exist_ok=True)
    save(saved, f"{name}/saved_model.pb")


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(parents=True)
    model, classifier, attention = recurrent(), Classifier(), Attention()
    call = tf.function(model, input_signature=[tf.TensorSpec([None, 20], tf.int32)])
    module = tf.Module()
    module.model, module.call = model, call
    counted = {  # before the open batch: TensorFlow would take that trace for every batch
        "classifier": flops(frozen(classifier.apply, BATCH, 64, 64, 3)),
        "attention": flops(frozen(attention.apply, BATCH, 12, 64)),
        "training": flops(training(BATCH)),
    }
    save(stripped(frozen(classifier.apply, None, 64, 64, 3).as_graph_def()), "classifier.pb")
    save(stripped(frozen(attention.apply, None, 12, 64).as_graph_def()), "attention.pb")
    save(stripped(frozen(tf.function(model), None, 20, dtype=tf.int32).as_graph_def()), "lstm.pb")
    save_model(module, "lstm", call)
    learner = Learner()
    save_model(learner, "learner", {"train": learner.step})
    recurrent_learner = RecurrentLearner()
    save_model(recurrent_learner, "recurrent_learner", {"train": recurrent_learner.step})
    graph = training(None)
    save(graph.as_graph_def(), "training.pb")
    tf.io.write_graph(graph, str(HERE), "training.pbtxt")
    with graph.as_default():
        meta = v1.train.export_meta_graph(graph=graph, clear_devices=False)
    meta.meta_info_def.ClearField("stripped_op_list")
    save(meta, "training.meta")
    save(loop_training().as_graph_def(), "loop_training.pb")
    metadata = measured(graph)
    save(metadata.cost_graph, "costs.pb")
    (HERE / "costs.pbtxt").write_text(str(metadata.cost_graph))
    names = ("classifier", "attention", "lstm", "training")
    inferred = {name: shapes(v1.GraphDef.FromString((HERE / f"{name}.pb").read_bytes())) for name in names}
    (HERE / "shapes.json").write_text(json.dumps(inferred, sort_keys=True) + "\n")
    (HERE / "flops.json").write_text(json.dumps(counted, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
