"""Files of rows, read as streams: JSON lines, JSON arrays, CSV, TSV and Parquet; `.gz` files of text are unpacked on
the way.

Each row comes with the line it begins on, counted from 1 (in Parquet: the row's number). A row that can't be read comes
as a `Problem` in its place, so that one pass finds every bad row; a file that can't be read on raises SuiteError. Bytes
are split on `\\n` only: U+2028 and its like stay in the text they stand in. A byte order mark, CRLF and blank lines are
no matter. Memory holds one row, but for a JSON array and Parquet: the array's text, a batch of rows. A row and an array
have a largest size, so that a small packed file can't fill the memory.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import msgspec

from shared.atomic import open_regular
from shared.config import DatasetConfig
from shared.errors import Problem, SuiteError
from shared.tables import show

Format = Literal["jsonl", "json", "csv", "tsv", "parquet"]

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
"""What a file's name tells of its format."""

BATCH_ROWS = 1024
"""Parquet rows held at once."""

MAX_ROW = 64 << 20
"""Bytes of one line."""

MAX_ARRAY = 1 << 30
"""Bytes of a JSON array."""

PYARROW_MISSING = "reading Parquet needs pyarrow: pip install 'tandem-eval[parquet]'"

_BOM = b"\xef\xbb\xbf"
_MAX_FIELD = 1 << 28  # characters of one CSV field; the module's own limit of 131,072 is too small for long contexts


def format_of(dataset: DatasetConfig) -> Format | None:
    """The format of a dataset's file: as configured, or as its name tells; None when it doesn't."""
    if dataset.format is not None:
        return dataset.format
    name = dataset.path.lower().removesuffix(".gz")
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def read_rows(
    path: Path, kind: Format, columns: tuple[str, ...] | None = None
) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    """The rows of a file as tables. columns: names for the columns of a CSV or TSV file without a header."""
    match kind:
        case "csv" | "tsv":
            return _delimited_rows(path, "," if kind == "csv" else "\t", columns)
        case "parquet":
            return _parquet_rows(path)
        case "json" | "jsonl":
            return _json_rows(path)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The rows of a JSON file, undecoded: its lines that aren't blank, or the elements of its array where it is one."""
    with _opened(path) as file:
        first = True
        for number, line in _lines(file, path):
            if line.isspace() or not line:
                continue
            if first and line.lstrip().startswith(b"["):
                yield from _elements(line + _rest(file, path), number, path)
                return
            first = False
            yield number, line


def json_fault(data: bytes, error: Exception) -> str:
    """Why `data` isn't JSON that can be worked with, given what msgspec said of it."""
    try:
        text = data.decode().rstrip()
    except UnicodeDecodeError as bad:
        return f"not UTF-8: byte 0x{data[bad.start]:02X} at column {bad.start + 1}: save the file as UTF-8"
    try:
        json.loads(text)
    except ValueError as bad:
        if isinstance(bad, json.JSONDecodeError):
            return f"not valid JSON: {bad.msg} at column {bad.colno}"
    except RecursionError:
        return "not usable JSON: nested too deeply"
    else:
        # The standard library is laxer than JSON in just these.
        if isinstance(error, msgspec.DecodeError):
            return "not valid JSON: it holds NaN, an infinity, a number out of range or half of a surrogate pair"
    return f"not usable JSON: {error}"


def not_an_object(value: Any) -> str:
    return f"expected an object with named fields, got {show(value)}"


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    decode = msgspec.json.Decoder().decode
    for number, line in read_lines(path):
        row: dict[str, Any] | Problem
        try:
            value = decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            row = Problem(f"{path}:{number}", json_fault(line, error))
        else:
            row = value if isinstance(value, dict) else Problem(f"{path}:{number}", not_an_object(value))
        yield number, row


def _elements(data: bytes, number: int, path: Path) -> Iterator[tuple[int, bytes]]:
    """The elements of a JSON array whose text begins on line `number`, each with the line that it begins on."""
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        line, fault = _array_fault(data, error)
        raise SuiteError([Problem(f"{path}:{number + line}", fault)]) from None
    end = 0
    for element in elements:
        # Between two elements stand white space and a comma alone, so the next match is the element itself.
        raw = bytes(element)
        start = data.index(raw, end)
        number += data.count(b"\n", end, start)
        yield number, raw
        number += raw.count(b"\n")
        end = start + len(raw)


def _array_fault(data: bytes, error: Exception) -> tuple[int, str]:
    """On which line (from 0) the array's text is bad, and why."""
    try:
        json.loads(data.decode())
    except UnicodeDecodeError as bad:
        line_start = data.rfind(b"\n", 0, bad.start) + 1
        return data.count(b"\n", 0, bad.start), json_fault(data[line_start : bad.end], error)
    except json.JSONDecodeError as bad:
        return bad.lineno - 1, f"not a valid JSON array: {bad.msg} at column {bad.colno}"
    except (ValueError, RecursionError):
        pass
    return 0, json_fault(data, error)


def _delimited_rows(
    path: Path, delimiter: str, columns: tuple[str, ...] | None
) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))  # the module keeps one limit for the whole process
    with _opened(path) as file:
        reader = csv.reader(_text_lines(file, path), delimiter=delimiter, strict=True)
        names = columns
        while True:
            number = reader.line_num + 1
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # After a fault the reader can't tell where the next row begins.
                raise SuiteError([Problem(f"{path}:{number}", f"not a valid row: {error}")]) from None
            if not values or (len(values) == 1 and not values[0].strip()):
                continue
            if names is None:
                names = _header(values, f"{path}:{number}")
            elif len(values) == len(names):
                yield number, dict(zip(names, values, strict=True))
            else:
                fault = f"expected {len(names)} fields ({', '.join(names)}), got {len(values)}"
                yield number, Problem(f"{path}:{number}", fault)


def _header(values: list[str], place: str) -> tuple[str, ...]:
    names = tuple(value.strip() for value in values)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SuiteError(
            [Problem(place, f"the header names {show(twice[0])} twice: for a file without a header, set `columns`")]
        )
    return names


def _text_lines(file: BinaryIO, path: Path) -> Iterator[str]:
    for number, line in _lines(file, path):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise SuiteError([Problem(f"{path}:{number}", json_fault(line, error))]) from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise SuiteError([Problem(str(path), PYARROW_MISSING)]) from None
    number = 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, cast("dict[str, Any]", row)
    except (ArrowException, OSError) as error:
        raise SuiteError([Problem(str(path), f"can't be read as Parquet after row {number}: {error}")]) from None


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, without a byte order mark."""
    number = 0
    while line := file.readline(MAX_ROW + 1):
        number += 1
        if len(line) > MAX_ROW:
            raise SuiteError([Problem(f"{path}:{number}", f"the line is longer than {MAX_ROW:,} bytes: split the row")])
        yield number, line[len(_BOM) :] if number == 1 and line.startswith(_BOM) else line


def _rest(file: BinaryIO, path: Path) -> bytes:
    """What is left of the file, which holds one array."""
    data = file.read(MAX_ARRAY + 1)
    if len(data) > MAX_ARRAY:
        fault = f"the array is longer than {MAX_ARRAY:,} bytes: write it as JSON lines, an element a line"
        raise SuiteError([Problem(str(path), fault)])
    return data


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked when its name ends in `.gz`. What goes wrong on the way raises SuiteError."""
    try:
        with open_regular(path) as plain:
            yield cast("BinaryIO", gzip.GzipFile(fileobj=plain)) if path.suffix.lower() == ".gz" else plain
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SuiteError([Problem(str(path), f"the gzip data is damaged: {error}")]) from None
    except OSError as error:
        raise SuiteError([Problem(str(path), f"can't be read: {error.strerror or error}")]) from None
