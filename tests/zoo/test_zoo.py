"""The zoo by name: every workload is complete, priced and small enough; bad sizes are refused in a sentence."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

from placewise.costing.work import work_of
from placewise.errors import InputError
from placewise.transform.fold import fold
from placewise.transform.training import to_training
from placewise.zoo import describe, generate, names

RECURRENT = [name for name in names() if "source_steps" in describe(name).dims or "steps" in describe(name).dims]


def few_steps(name):
    """Sizes of a workload that make it small: four steps of each kind, where it has any."""
    return {size: 4 for size in describe(name).dims if size.endswith("steps")}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", names())
def test_every_workload_is_complete(name, training):
    """Every op has a cost rule, every tensor a size; nothing folds away, nothing is computed in vain."""
    graph = generate(name, few_steps(name), training=training)
    assert graph.n_ops > 0 and graph.tensors.output.any()
    assert (graph.tensors.bytes >= 0).all()
    work = work_of(graph)
    assert work.known.all() and not work.warnings
    assert work.flops.sum() > 0
    assert fold(graph).n_ops == graph.n_ops
    assert not graph.ops.backward.any()
    used = np.unique(graph.weight_edges.value)
    assert len(used) == len(graph.weights)


@pytest.mark.parametrize("name", names())
def test_a_workload_says_where_it_comes_from(name):
    """The source holds what generates the same graph again; the description names the paper and every size."""
    dims = {"batch": 2, **few_steps(name)}
    graph = generate(name, dims, "float16", training=True)
    source = graph.source
    assert (source.path, source.format) == (f"zoo:{name}", "zoo")
    options = source.options
    again = generate(source.path.removeprefix("zoo:"), options["dims"], options["dtype"], training=options["training"])
    assert again.digest() == graph.digest() and again.ops.name == graph.ops.name
    entry = describe(name)
    assert entry.paper in str(entry) and all(size in str(entry) for size in entry.dims)


@pytest.mark.parametrize("name", names())
def test_weights_take_the_element_type(name):
    """In float16 every weight and every floating tensor is half as large."""
    dims = {"batch": 1, **few_steps(name)}
    full, half = generate(name, dims), generate(name, dims, "float16")
    assert half.weights.bytes.sum() * 2 == full.weights.bytes.sum()
    assert work_of(half).flops.sum() == work_of(full).flops.sum()


@pytest.mark.parametrize("name", RECURRENT)
def test_steps_share_their_weights(name):
    """Twice the steps: more ops, as many weights, and one weight is used by every step."""
    entry = describe(name).dims
    steps = [size for size in entry if size.endswith("steps")]
    short, long = (generate(name, dict.fromkeys(steps, n)) for n in (4, 8))
    assert long.n_ops > 1.8 * short.n_ops - 60
    assert len(long.weights) == len(short.weights)
    kernel = long.weights.name.index(next(w for w in long.weights.name if w.endswith("kernel") and "layer" in w))
    assert int((long.weight_edges.value == kernel).sum()) == 8


def test_scopes_name_layer_and_step():
    """Ops of unrolled steps stand under the path of their layer and step."""
    graph = generate("gnmt-4", {"source_steps": 3, "target_steps": 2})
    scopes = set(graph.ops.scope)
    assert {"encoder.layer.3.step.2", "encoder.layer.0.backward.step.0", "decoder.layer.3.step.1"} <= scopes
    assert {"attention.keys", "decoder.attention.step.1", "softmax"} <= scopes


def test_gnmt_8_in_training_has_more_than_50_000_ops():
    """By unrolling 75 steps of 8 and 8 layers, with and without dropout; forward alone has a third or more of them."""
    for training in (False, True):
        forward = generate("gnmt-8", training=training)
        graph = to_training(forward)
        assert graph.n_ops > 50_000
        assert 2 < graph.n_ops / forward.n_ops < 4


def test_training_adds_what_only_training_has():
    """Dropout, and the auxiliary classifier of Inception-V3."""
    for name in ("rnnlm-2", "gnmt-2", "bert-base", "transformer-xl-2"):
        kinds = set(generate(name, training=True).ops.kind)
        assert "RandomUniform" in kinds and "RandomUniform" not in set(generate(name).ops.kind)
    inception = generate("inception-v3", training=True)
    assert int(inception.tensors.output.sum()) == 2
    assert any(name.startswith("auxiliary.") for name in inception.weights.name)


def refused(name, dims=None, dtype="float32"):
    with pytest.raises(InputError) as caught:
        generate(name, dims or {}, dtype)
    return str(caught.value)


def test_bad_names_and_sizes_are_refused():
    """One sentence with the place and the remedy."""
    assert "did you mean gnmt-2 or gnmt-4 or gnmt-8? it has rnnlm-2, " in refused("gnmt")
    assert "did you mean resnet-50?" in refused("resnet50")
    assert refused("").startswith("the zoo has no ''; it has rnnlm-2")
    assert refused("nmt", {"depth": 3}).startswith("zoo:nmt: has no dimension 'depth'; it has layers, batch")
    assert "give a whole number from 1" in refused("nmt", {"layers": 0})
    assert "give a whole number" in refused("nmt", {"layers": 2.5})
    assert "give a whole number" in refused("nmt", {"layers": True})
    assert "choose float32" in refused("nmt", dtype="int8")
    assert "more than 1,000,000 ops" in refused("gnmt-8", {"source_steps": 10**6})
    assert "more than 1,000,000 ops" in refused("gnmt-8", {"layers": 10**9})
    assert "bytes" in refused("bert-base", {"batch": 10**9})
    assert "12 heads cannot share a width of 100" in refused("bert-base", {"hidden": 100})
    assert "512 positions" in refused("bert-base", {"length": 513})
    assert "×0×0" in refused("inception-v3", {"image": 32})
    assert "at most 30" in refused("wavenet-4x36", {"stack": 36})
    assert "choose an even width" in refused("transformer-xl-2", {"hidden": 7, "heads": 7})


@examples(100)
@given(data=st.data())
def test_any_sizes_give_a_graph_or_a_sentence(data):
    """Whatever the sizes, what comes out is a graph or an error that names the workload."""
    name = data.draw(st.sampled_from(names()))
    size = st.sampled_from((0, 1, 2, 3, 5, 64, 1000, 10**6, 10**9))
    few = st.sampled_from((0, 1, 2, 3, 10**9))
    dims = {
        each: data.draw(few if re.search("steps|layers|cells|n_ops", each) else size)
        for each in data.draw(st.sets(st.sampled_from(sorted(describe(name).dims))))
    }
    try:
        graph = generate(name, dims)
    except InputError as error:
        assert str(error).startswith(f"zoo:{name}: ")
    else:
        assert graph.n_ops > 0
