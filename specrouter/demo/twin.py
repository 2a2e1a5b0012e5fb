"""A deep twin: the same answers for a multiple of the work. It stands in for a big target on a small machine.

Every block of the model is followed by copies whose output projections (`attn_output`, `ffn_down`) are zero,
so a copy adds nothing to the residual stream and costs what a block costs. With `factor=1` nothing is copied,
and only the type changes: a rougher quantisation makes a worse draft.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specrouter.errors import SetupError

from .wheels import cache_folder, locked, make_folder, require_space

TYPES = ("KEEP", "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""Types for the weights of a twin; KEEP leaves them as they are stored."""

Progress = Callable[[int, int], None]
"""Takes the bytes written so far and the bytes to write."""

_SILENT = ("attn_output.", "ffn_down.")


def cached_twin(
    source: Path,
    *,
    factor: int = 5,
    type: str = "BF16",  # noqa: A002
    progress: Progress | None = None,
) -> Path:
    """The deep twin of a model in the cache folder, made if it is not there.

    Its name holds the digest of the source, so another file under the same name makes another twin.
    """
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    folder = cache_folder() / "twins"
    make_folder(folder)
    output = folder / f"{source.stem}-x{factor}-{type}-{digest}.gguf"
    with locked(output.with_suffix(".lock")):
        if not output.exists():
            make_twin(source, output, factor=factor, type=type, progress=progress)
    return output


def make_twin(
    source: Path,
    output: Path,
    factor: int = 5,
    type: str = "BF16",  # noqa: A002
    progress: Progress | None = None,
) -> None:
    """Write the deep twin of a GGUF file, or with `factor=1` the file in another type.

    `output` appears complete or not at all. One tensor at a time is in memory. BF16 is the type for a CPU:
    several tokens in one batch then cost little more than one, which is what speculative decoding lives on;
    one-dimensional tensors keep their type. Raises SetupError for a missing package, an unknown type, or a
    model that has no such blocks.
    """
    if type not in TYPES:
        raise SetupError(f"cannot write weights as {type!r}; known types are {', '.join(TYPES)}")
    if factor < 1:
        raise SetupError(f"a twin has at least as many blocks as its source: the factor is {factor}, 1 is the least")
    gguf, numpy = _import_packages()
    try:
        reader = gguf.GGUFReader(source)
    except (OSError, ValueError) as error:
        raise SetupError(f"{source} cannot be read as GGUF: {error}") from error
    descriptor, name = tempfile.mkstemp(prefix=f".partial-{output.stem}-", dir=output.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        _Twin(gguf, numpy, reader, factor, type).write(partial, progress or (lambda _done, _total: None))
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _import_packages() -> tuple[Any, Any]:
    """gguf and numpy, which only this needs."""
    try:
        importlib.import_module("gguf.quants")
        return importlib.import_module("gguf"), importlib.import_module("numpy")
    except ImportError as error:
        raise SetupError(
            f"making the slow target needs the packages gguf and numpy ({error.name} is missing): "
            "pip install 'specrouter[demo]'"
        ) from error


class _Twin:
    """A twin that is described first and then written tensor by tensor."""

    def __init__(self, gguf: Any, numpy: Any, reader: Any, factor: int, type_name: str) -> None:
        self._gguf = gguf
        self._numpy = numpy
        self._reader = reader
        self._factor = factor
        self._type = None if type_name == "KEEP" else gguf.GGMLQuantizationType[type_name]
        self._architecture = reader.fields["general.architecture"].contents()

    def write(self, path: Path, progress: Progress) -> None:
        plan = [(tensor, list(self._copies(tensor))) for tensor in self._reader.tensors]
        names = {name.split(".", 2)[2] for _, copies in plan for name, _ in copies if name.startswith("blk.")}
        if not all(any(part.startswith(silent) for part in names) for silent in _SILENT):
            raise SetupError(
                f"cannot make a deep twin of a {self._architecture} model: "
                "its blocks have no attn_output and ffn_down tensors"
            )
        total = sum(self._bytes(tensor) * len(copies) for tensor, copies in plan)
        require_space(path.parent, total + (16 << 20), "the deep twin")
        writer = self._gguf.GGUFWriter(path, self._architecture)
        try:
            self._describe(writer, plan)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            done = 0
            for tensor, copies in plan:
                data = self._converted(tensor)
                for _, silent in copies:
                    writer.write_tensor_data(self._numpy.zeros_like(data) if silent else data)
                    done += data.nbytes
                    progress(done, total)
        finally:
            writer.close()

    def _describe(self, writer: Any, plan: list[tuple[Any, list[tuple[str, bool]]]]) -> None:
        block_count = f"{self._architecture}.block_count"
        for key, field in self._reader.fields.items():
            if key.startswith("GGUF.") or key == "general.architecture":
                continue
            if key == "general.file_type" and self._type is not None:
                continue
            value, kind = field.contents(), field.types[0]
            if key == block_count:
                value *= self._factor
            elif key == "general.name" and self._factor > 1:
                value = f"{value} (deep twin x{self._factor})"
            if kind == self._gguf.GGUFValueType.ARRAY:
                writer.add_array(key, value)
            else:
                writer.add_key_value(key, value, kind)
        any_float = self._numpy.dtype("float32")  # the writer derives nothing from it when raw_dtype is given
        for tensor, copies in plan:
            shape = [int(size) for size in reversed(tensor.shape)]
            for name, _ in copies:
                writer.add_tensor_info(name, shape, any_float, self._bytes(tensor), raw_dtype=self._kind(tensor))

    def _copies(self, tensor: Any) -> Iterator[tuple[str, bool]]:
        """Each name the tensor gets, and whether it is silent (all zero) there."""
        if not tensor.name.startswith("blk."):
            yield tensor.name, False
            return
        _, index, part = tensor.name.split(".", 2)
        for copy in range(self._factor):
            yield f"blk.{int(index) * self._factor + copy}.{part}", copy > 0 and part.startswith(_SILENT)

    def _kind(self, tensor: Any) -> Any:
        return tensor.tensor_type if self._type is None or len(tensor.shape) < 2 else self._type

    def _bytes(self, tensor: Any) -> int:
        block, size = self._gguf.GGML_QUANT_SIZES[self._kind(tensor)]
        if int(tensor.shape[0]) % block:
            raise SetupError(
                f"cannot write {tensor.name} as {self._kind(tensor).name}: "
                f"its rows have {tensor.shape[0]} values, which is no multiple of {block}"
            )
        return int(tensor.n_elements) // int(block) * int(size)

    def _converted(self, tensor: Any) -> Any:
        kind = self._kind(tensor)
        if kind == tensor.tensor_type:
            return tensor.data
        return self._gguf.quants.quantize(self._gguf.quants.dequantize(tensor.data, tensor.tensor_type), kind)
