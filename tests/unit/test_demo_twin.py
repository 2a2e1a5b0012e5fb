"""The deep twin of a tiny made-up model."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from specrouter.demo.twin import cached_twin, make_twin
from specrouter.errors import SetupError

BLOCKS, WIDTH = 2, 32


@pytest.fixture
def source(tmp_path):
    return write_model(tmp_path / "tiny.gguf", ("attn_q", "attn_output", "ffn_down"))


def write_model(path, parts, seed=7):
    numbers = np.random.default_rng(seed)
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(BLOCKS)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", numbers.standard_normal((2, WIDTH), dtype=np.float32))
    for block in range(BLOCKS):
        writer.add_tensor(f"blk.{block}.attn_norm.weight", np.full(WIDTH, block + 1, dtype=np.float32))
        for part in parts:
            writer.add_tensor(f"blk.{block}.{part}.weight", numbers.standard_normal((WIDTH, WIDTH), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path):
    return {tensor.name: tensor for tensor in GGUFReader(path).tensors}


def test_copies_add_nothing_and_the_rest_stays(source, tmp_path):
    twin = tmp_path / "twin.gguf"
    seen = []
    make_twin(source, twin, factor=3, type="KEEP", progress=lambda done, total: seen.append((done, total)))
    before, after = tensors(source), tensors(twin)
    assert GGUFReader(twin).fields["llama.block_count"].contents() == BLOCKS * 3
    assert GGUFReader(twin).fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert np.array_equal(after["token_embd.weight"].data, before["token_embd.weight"].data)
    for block in range(BLOCKS):
        for copy in range(3):
            for part in ("attn_norm", "attn_q", "attn_output", "ffn_down"):
                old = before[f"blk.{block}.{part}.weight"].data
                new = after[f"blk.{block * 3 + copy}.{part}.weight"].data
                silent = copy > 0 and part in ("attn_output", "ffn_down")
                assert np.array_equal(new, np.zeros_like(old) if silent else old), (block, copy, part)
    assert len(after) == 1 + BLOCKS * 3 * 4
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("kind", ["BF16", "F16", "Q8_0", "Q4_0"])
def test_matrices_are_converted_and_vectors_are_not(source, tmp_path, kind):
    twin = tmp_path / "twin.gguf"
    make_twin(source, twin, factor=1, type=kind)
    after = tensors(twin)
    assert after["blk.1.attn_q.weight"].tensor_type == GGMLQuantizationType[kind]
    assert list(after["blk.1.attn_q.weight"].shape) == [WIDTH, WIDTH]
    assert after["blk.1.attn_norm.weight"].tensor_type == GGMLQuantizationType.F32
    assert GGUFReader(twin).fields["general.name"].contents() == "tiny"


def test_model_without_such_blocks(tmp_path):
    other = write_model(tmp_path / "other.gguf", ("ssm_in", "ssm_out"))
    with pytest.raises(SetupError, match="its blocks have no attn_output and ffn_down tensors"):
        make_twin(other, tmp_path / "twin.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["other.gguf"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"type": "Q3_K"}, "cannot write weights as 'Q3_K'; known types are KEEP, F32"),
        ({"factor": 0}, "the factor is 0"),
    ],
)
def test_options_that_make_no_twin(source, tmp_path, options, problem):
    with pytest.raises(SetupError, match=problem):
        make_twin(source, tmp_path / "twin.gguf", **options)


def test_file_that_is_no_model(tmp_path):
    (tmp_path / "text.gguf").write_bytes(b"no model at all, but long enough for a header")
    with pytest.raises(SetupError, match=r"text.gguf cannot be read as GGUF"):
        make_twin(tmp_path / "text.gguf", tmp_path / "twin.gguf")


def test_interrupted_twin_leaves_nothing(source, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_twin(source, tmp_path / "twin.gguf", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_missing_package_is_named_with_what_to_install(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    with pytest.raises(SetupError, match=r"gguf.quants is missing\): pip install 'specrouter\[demo\]'"):
        make_twin(source, tmp_path / "twin.gguf")


def test_twin_is_made_once_for_each_content(source, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECROUTER_CACHE", str(tmp_path / "cache"))
    calls = []
    first = cached_twin(source, factor=2, progress=lambda *_: calls.append("first"))
    assert cached_twin(source, factor=2, progress=lambda *_: calls.append("again")) == first
    assert set(calls) == {"first"}
    write_model(source, ("attn_q", "attn_output", "ffn_down"), seed=8)
    assert cached_twin(source, factor=2) != first
