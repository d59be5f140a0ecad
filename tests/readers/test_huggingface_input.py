"""Hugging Face configurations: wrong files, wrong values and wrong dimensions end in one clear sentence."""

from __future__ import annotations

import json
import re
import time

import pytest
from huggingface_configs import LLAMA_4, SMALL, write_config
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from soak import examples

from placewise.errors import ModelFileError, PlacewiseError
from placewise.readers.huggingface import preset_names, read_huggingface
from placewise.readers.huggingface.library_errors import describe_library_error
from placewise.readers.huggingface.presets import HUB_IDS, find_preset

pytest.importorskip("torch", reason="configurations are built with PyTorch")
pytest.importorskip("transformers", reason="configurations are built with transformers")

TINY = {"prompt": 2, "tokens": 1}


def refused(path, match, **options) -> None:
    with pytest.raises(ModelFileError, match=match) as raised:
        read_huggingface(path, **options)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_are_no_configuration(tmp_path):
    """Missing, empty, no JSON, no object, no model type: each says what it is."""
    path = tmp_path / "config.json"
    refused(path, "cannot be read")
    refused(tmp_path, "cannot be read")
    for content, match in (
        (b"", "empty"), (b"{", "not JSON"), (b"\xff\xfe\x00", "not JSON"), (b"[1, 2]", "not a configuration"),
        (b"{}", "no model_type"), (b'{"model_type": 3}', "no model_type"), (b"[" * 100_000, "nested too deeply"),
    ):  # fmt: skip
        path.write_bytes(content)
        refused(path, match)
    path.write_bytes(b" " * (5 << 20) + b"{}")
    refused(path, "too long")


def test_a_folder_stands_for_its_config(tmp_path):
    """A folder with a config.json in it may be given instead of the file."""
    write_config(tmp_path, "llama")
    assert read_huggingface(tmp_path, dims=TINY).graph.n_ops


def test_presets_that_do_not_exist():
    """A name that is no preset comes with those that are near."""
    with pytest.raises(ModelFileError, match="llama-3-70b"):
        read_huggingface("hf:llama3-70b")
    with pytest.raises(ModelFileError, match="no preset"):
        read_huggingface("hf:../settings")


@pytest.mark.parametrize("name", ["phi-3", "llama-4-8b"])
def test_names_without_a_preset_say_how_to_read_the_model(name):
    """Whoever has another model learns how to get its configuration."""
    with pytest.raises(ModelFileError, match=r"hf download OWNER/NAME config\.json --local-dir model`\) and give that"):
        find_preset(name)


def test_ids_of_the_hub_are_known_without_their_owner():
    """As people write them: the name of the model alone."""
    assert find_preset("llama-3.1-70b") == find_preset("Llama-3.3-70B-Instruct") == "llama-3-70b"
    assert find_preset("Mixtral-8x7B-Instruct-v0.1") == "mixtral-8x7b"
    assert all(find_preset(name.rpartition("/")[2]) == preset for preset, names in HUB_IDS.items() for name in names)


def test_ids_of_the_hub_are_presets():
    """Every id belongs to one preset, its case does not matter, and the graph names the preset."""
    assert sorted(HUB_IDS) == list(preset_names())
    ids = [hub_id.lower() for ids in HUB_IDS.values() for hub_id in ids]
    assert len(set(ids)) == len(ids)
    for preset, names in HUB_IDS.items():
        assert {find_preset(name) for name in (preset, preset.upper(), *names, names[0].upper())} == {preset}
    graph = read_huggingface("hf:Google-BERT/bert-base-uncased", dims={"length": 8}).graph
    assert graph.source is not None and graph.source.path == "hf:bert-base"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (
            "mistralai/Mistral-7B-v0.1",
            r"--local-dir model`\) and give that file, or take the nearest preset, hf:mistral-7b",
        ),
        ("Qwen/Qwen2.5-14B", "nearest preset, hf:qwen2.5-7"),
        ("someone/zzzzzz", "or take a preset, such as hf:llama-3-8b"),
        ("microsoft/Phi-3-mini-4k-instruct", "or take a preset, such as hf:llama-3-8b"),
    ],
)
def test_ids_of_the_hub_without_a_preset(name, match):
    """Nothing is downloaded: the error says how to get the configuration, and what is nearest."""
    with pytest.raises(ModelFileError, match=match) as raised:
        read_huggingface(f"hf:{name}")
    assert f"hf:{name}: no preset has the shapes of this model" in str(raised.value)
    assert f"`hf download {name} config.json" in str(raised.value) and "\n" not in str(raised.value)


def test_models_that_transformers_does_not_know(tmp_path):
    """An unknown model type, code from elsewhere, and a state that has no price are refused."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "nonesuch"}')
    refused(path, "knows no model_type 'nonesuch'")
    path.write_text('{"model_type": "nonesuch", "auto_map": {"AutoModel": "x--y.Z"}}')
    refused(path, "never runs the code that the configuration asks for")
    path.write_text('{"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 96}')
    refused(path, "mamba|state|traced")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000"),
        ({"hidden_size": 1e400}, "hidden_size is inf"),
        ({"hidden_size": -32}, "rejects|build"),
        ({"hidden_size": "wide"}, "rejects|build"),
        ({"num_attention_heads": 0}, "rejects|build"),
        ({"vocab_size": None}, "rejects|build"),
        ({"hidden_act": "nonesuch"}, "rejects|build"),
        ({"layer_types": ["x"] * 3}, "rejects|build|traced"),
        ({"dtype": "float7"}, "element type is 'float7'"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3, but must not be negative"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share the keys and values of 3"),
        ({"num_labels": 10**9}, "num_labels is 1000000000"),
        ({"sliding_window": -4}, "sliding_window is -4"),
        ({"hidden_act": "__import__"}, r"transformers does not know '__import__'\)"),
        ({"rope_scaling": {"rope_type": "nonesuch", "factor": 2.0}}, r"transformers does not know 'nonesuch'\)"),
        ({"hidden_size": 2**31, "intermediate_size": 2**31, "vocab_size": 2**31}, "."),
    ],
)
def test_values_that_make_no_model(tmp_path, changes, match):
    """Absurd sizes, wrong types and unknown words are refused by name, and soon."""
    start = time.monotonic()
    refused(write_config(tmp_path, "llama", **changes), match, dims=TINY)
    assert time.monotonic() - start < 30


def test_windows_that_show_nothing(tmp_path):
    """A window of no positions is refused where layers slide; where the model knows of none, 0 is none."""
    size = {key: value for key, value in SMALL["gemma2"].items() if key not in ("sliding_window", "head_dim")}
    path = tmp_path / "config.json"
    for kind in ("mistral", "gemma2"):
        path.write_text(json.dumps({"model_type": kind, **size, "sliding_window": 0}))
        refused(path, "sliding_window is 0, which excludes the token itself", dims=TINY)
    path.write_text(json.dumps({"model_type": "qwen2", **size, "use_sliding_window": False, "sliding_window": 0}))
    assert read_huggingface(path, dims=TINY).graph.n_ops
    assert read_huggingface(write_config(tmp_path, "llama", sliding_window=0), dims=TINY).graph.n_ops


def test_mixtures_that_choose_no_expert(tmp_path):
    """Where no expert is selected for a token, there is nothing to price."""
    refused(write_config(tmp_path, "mixtral", num_experts_per_tok=0), "no expert is selected", dims=TINY)
    for values in ({"num_experts_per_tok": 0}, {"num_experts_per_tok": 5}, {"num_local_experts": 0}):
        refused(write_config(tmp_path, "llama", **LLAMA_4 | values), "experts cannot be chosen for a token", dims=TINY)


def test_kinds_of_layers_are_counted_too(tmp_path):
    """Lists that transformers would make as long as a number in them says are bounded."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt_neo", "attention_types": [[["global", "local"], 10**9]]}))
    refused(path, "attention_types is 1000000000")


def test_no_cache_no_decode(tmp_path):
    """A decoder that keeps no keys and values is not priced as if it did; its prompt is."""
    path = tmp_path / "config.json"
    small = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 96}
    path.write_text(json.dumps({"model_type": "openai-gpt", **small}))
    refused(path, "keeps no keys and values between tokens.*tokens=0", dims=TINY)
    assert read_huggingface(path, dims={"prompt": 2, "tokens": 0}).graph.n_ops


@pytest.mark.parametrize("options", [{}, {"training": True}])
@pytest.mark.parametrize("kind", ["mamba", "qwen3_next", "rwkv"])
def test_recurrent_models_are_refused(tmp_path, kind, options):
    """Their scans over a text are not traced token by token, for training neither."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, "num_hidden_layers": 2}))
    refused(path, "keep a state of.*keep keys and values only", **options)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("clip", r"fails on these values or inputs\); export it yourself"),
        ("reformer", "depends on the data; export it yourself"),
        ("moonshine", "reads input_values, and its configuration does not say how many.*export it yourself"),
    ],
)
def test_models_that_need_an_export_say_so(tmp_path, kind, match):
    """No words of Python, and a remedy that a configuration can follow."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind}))
    refused(path, match)


def test_what_libraries_raise_is_told_in_our_words():
    """By type: a package that is missing, memory that ends, data that decide, and errors that speak of code."""
    for error, match in (
        (ImportError("\nX requires the timm library but it was not found.\n"), "needs the package timm; install"),
        (ModuleNotFoundError("No module named 'timm'", name="timm"), "needs the package timm; install"),
        (MemoryError(), "more memory is needed than there is; check its sizes"),
        (KeyError("x"), "transformers does not know 'x'"),
        (ValueError("`__len__()` should return >= 0"), "fails on these values"),
        (TypeError("forward() missing 1 required positional argument"), "fails on these values"),
        (ValueError("head_dim is odd"), r"\(head_dim is odd\); check its values"),
    ):
        assert re.search(match, str(describe_library_error("it cannot be built", error)))


def test_code_of_a_known_model_is_not_run(tmp_path):
    """A model that transformers knows is read from there, whatever code its configuration names."""
    path = write_config(tmp_path, "llama", auto_map={"AutoModel": "x--y.Z"}, trust_remote_code=True)
    assert any("is not run" in note for note in read_huggingface(path, dims=TINY).warnings)


@pytest.mark.usefixtures("own_traces")
def test_wishes_for_kernels_are_left_out(tmp_path):
    """Names of kernels to be fetched, also inside, are not passed on: the graph is the same without them."""
    path = write_config(tmp_path, "llama")
    plain = read_huggingface(path, dims=TINY).graph.digest()
    problem_options = {
        "_attn_implementation": "someone/kernel",
        "attn_implementation": "someone/kernel",
        "kernel_config": {"a": 1},
    }
    write_config(tmp_path, "llama", **problem_options, _experts_implementation="someone/kernel")
    assert read_huggingface(path, dims=TINY).graph.digest() == plain


def test_sizes_are_no_counts(tmp_path):
    """A width may be large though its name speaks of layers or experts (Qwen's shared expert, say)."""
    wide = {"shared_expert_intermediate_size": 20_480, "block_ff_dim": 20_480, "max_window_layers": 28}
    assert read_huggingface(write_config(tmp_path, "llama", **wide), dims=TINY).graph.n_ops


def test_an_unknown_quantization_is_left_out_and_told(tmp_path):
    """The model is read in its element type, with a note."""
    path = write_config(tmp_path, "llama", quantization_config={"quant_method": "aqlm"})
    assert any("quantization (aqlm) is not known" in note for note in read_huggingface(path, dims=TINY).warnings)


def test_more_positions_than_the_model_has(tmp_path):
    """Prompts longer than the model was made for are read, with a note."""
    path = write_config(tmp_path, "gpt2")
    assert any("positions" in note for note in read_huggingface(path, dims={"prompt": 64, "tokens": 1}).warnings)
    sizes = {"prompt": 8, "tokens": 1, "context": 65}
    assert any("65 positions" in note for note in read_huggingface(path, dims=sizes).warnings)


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        ({"nonesuch": 3}, "no dimension 'nonesuch'.*batch, prompt, tokens"),
        ({"batch": 0}, "batch is 0"),
        ({"prompt": 10**12}, "prompt is 1000000000000"),
        ({"batch": True}, "batch is True"),
        ({"batch": "two"}, "batch is two"),
        ({"prompt": 10, "tokens": 5, "length": 12}, r"does not hold 10 \+ 5 tokens"),
        ({"batch": 2**30, "prompt": 2**30}, "exceed the memory of any machine"),
    ],
)
def test_dimensions_that_do_not_fit(tmp_path, dims, match):
    """Names that the model does not have, and sizes that make no sense, are refused."""
    with pytest.raises(PlacewiseError, match=match):
        read_huggingface(write_config(tmp_path, "llama"), dims=dims)


def test_dimensions_of_other_models(tmp_path):
    """A model that runs once has no tokens, and one that listens no prompt."""
    refused(write_config(tmp_path, "bert"), "no dimension 'tokens'", dims={"tokens": 3})
    refused(write_config(tmp_path, "whisper"), "no dimension 'prompt'", dims={"prompt": 3})
    refused(write_config(tmp_path, "llama"), "element type is 'int8'", dtype="int8")


def only_our_errors(path) -> None:
    try:
        read_huggingface(path, dims=TINY)
    except PlacewiseError as error:
        assert "\n" not in str(error)


KEYS = sorted({key for kind in ("llama", "gpt_oss", "gemma2") for key in SMALL[kind]} | {"model_type", "rope_theta"})
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.integers(0, 4), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
)  # fmt: skip


@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["llama", "gpt_oss", "gemma2"]), st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1))
def test_any_values_end_in_a_graph_or_in_our_errors(tmp_path, kind, changes):
    """Values of any type, in any key: a graph comes out, or an error of ours."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **SMALL[kind], **changes}))
    only_our_errors(path)


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes_end_in_a_graph_or_in_our_errors(tmp_path, data):
    """Bytes of a good file changed, cut or added: a graph comes out, or an error of ours."""
    path = write_config(tmp_path, "gpt2")
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place : place + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    path.write_bytes(bytes(content[: data.draw(st.sampled_from([place + 8, len(content)]))]))
    only_our_errors(path)
