"""The text of a .proto file as the descriptor that Protobuf's library works with. No protoc is needed.

Messages, enums, nested ones, oneof, map, optional, repeated, imports and packages of proto2 and proto3 are read;
options, services and extensions are passed over, groups refused. Names of types are left as written: the library
resolves them. What cannot be read is an error with the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headrace.errors import UsageError

_TOKEN = re.compile(r'\s+|//[^\n]*|/\*.*?\*/|("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[\w.]+|[^\w\s])', re.DOTALL)
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
_MESSAGE = 11
_SKIPPED = {"option", "reserved", "extensions"}
_BLOCKS = {"service", "extend"}


def parse_proto(text: str, name: str) -> Any:
    """The FileDescriptorProto of the text, under that name."""
    return _Parser(text, name).file()


def fields_in(file: Any) -> dict[str, str]:
    """Type and number of every field of a FileDescriptorProto by its path, as in `Ride.stops`: `repeated string = 2`.

    A descriptor that a client has registered names types in full, a parsed text as they are written.
    """
    labelled = not file.syntax  # in proto2 every field has a label, in proto3 `optional` is a choice
    return dict(found for message in file.message_type for found in _declared(message, message.name, labelled))


def _declared(message: Any, path: str, labelled: bool) -> Iterator[tuple[str, str]]:
    maps = {nested.name: nested.field for nested in message.nested_type if nested.options.map_entry}
    for field in message.field:
        group = ""
        label = {2: "required ", 3: "repeated "}.get(field.label, "optional " if labelled else "")
        if field.proto3_optional:
            label = "optional "
        elif field.HasField("oneof_index"):
            group, label = f"{message.oneof_decl[field.oneof_index].name}.", ""
        if entry := maps.get(field.type_name.rpartition(".")[2]):
            label, kind = "", f"map<{', '.join(map(_type_name, entry))}>"
        else:
            kind = _type_name(field)
        yield f"{path}.{group}{field.name}", f"{label}{kind} = {field.number}"
    for nested in message.nested_type:
        if nested.name not in maps:
            yield from _declared(nested, f"{path}.{nested.name}", labelled)


def _type_name(field: Any) -> str:
    return field.type_name or next(name for name, number in _SCALARS.items() if number == field.type)


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        self._tokens = [(found[1], found.start()) for found in _TOKEN.finditer(text) if found[1]]
        self._text = text
        self._at = 0
        self._file = FileDescriptorProto(name=name, syntax="proto2")

    def file(self) -> Any:
        while self._at < len(self._tokens):
            word = self._next()
            if word == "syntax":
                self._expect("=")
                self._file.syntax = self._string()
                self._expect(";")
            elif word == "package":
                self._file.package = self._next()
                self._expect(";")
            elif word == "import":
                if self._peek() in {"public", "weak"}:
                    self._next()
                self._file.dependency.append(self._string())
                self._expect(";")
            elif word == "message":
                self._message(self._file.message_type.add())
            elif word == "enum":
                self._enum(self._file.enum_type.add())
            else:
                self._pass_over(word)
        if self._file.syntax == "proto2":
            self._file.ClearField("syntax")
        return self._file

    def _message(self, message: Any) -> None:
        message.name = self._next()
        self._expect("{")
        optional: list[Any] = []
        while (word := self._next()) != "}":
            if word == "message":
                self._message(message.nested_type.add())
            elif word == "enum":
                self._enum(message.enum_type.add())
            elif word == "oneof":
                self._oneof(message)
            elif word == "map" and self._peek() == "<":
                self._map(message)
            elif word in _SKIPPED | _BLOCKS | {";"}:
                self._pass_over(word)
            else:
                field = self._field(message, word)
                if word == "optional" and self._file.syntax == "proto3":
                    optional.append(field)
        # Presence in proto3 is a oneof with one member; such oneofs have to stand behind the written ones.
        for field in optional:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _field(self, message: Any, word: str) -> Any:
        label = _LABELS.get(word)
        kind = self._next() if label else word
        field = message.field.add(label=label or 1)
        self._type(field, kind)
        field.name = self._next()
        self._expect("=")
        field.number = self._number()
        self._field_options()
        return field

    def _type(self, field: Any, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        elif re.fullmatch(r"\.?[A-Za-z_][\w.]*", kind):
            field.type_name = kind
        else:
            raise self._fault(f"unknown type {kind!r}")

    def _oneof(self, message: Any) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._next())
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                self._pass_over(word)
            else:
                self._field(message, word).oneof_index = index

    def _map(self, message: Any) -> None:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name = self._next()
        self._expect("=")
        # A map is a repeated message of key and value, under a name that protoc prescribes.
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        self._type(entry.field.add(name="key", number=1, label=1), key)
        self._type(entry.field.add(name="value", number=2, label=1), value)
        message.field.add(name=name, number=self._number(), label=3, type=_MESSAGE, type_name=entry.name)
        self._field_options()

    def _enum(self, enum: Any) -> None:
        enum.name = self._next()
        self._expect("{")
        while (word := self._next()) != "}":
            if word in _SKIPPED:
                self._pass_over(word)
            else:
                self._expect("=")
                enum.value.add(name=word, number=self._number())
                self._field_options()

    def _field_options(self) -> None:
        if self._peek() == "[":
            while self._next() != "]":
                pass
        self._expect(";")

    def _pass_over(self, word: str) -> None:
        """A statement up to its semicolon, or a block up to its end."""
        if word not in _SKIPPED | _BLOCKS | {";"}:
            self._at -= 1
            raise self._fault(f"{word!r} is not expected here")
        depth = 0
        while word != ";" or depth:
            word = self._next()
            depth += (word == "{") - (word == "}")
            if word == "}" and not depth:
                return

    def _peek(self) -> str:
        if self._at >= len(self._tokens):
            raise self._fault("it ends too early")
        return self._tokens[self._at][0]

    def _next(self) -> str:
        word = self._peek()
        self._at += 1
        return word

    def _expect(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise self._fault(f"{wanted!r} is expected, not {self._peek()!r}")
        self._at += 1

    def _string(self) -> str:
        return self._next()[1:-1]

    def _number(self) -> int:
        sign = "-" if self._peek() == "-" else ""
        if sign:
            self._next()
        try:
            return int(sign + self._peek(), 0)
        except ValueError:
            raise self._fault(f"a number is expected, not {self._peek()!r}") from None
        finally:
            self._at += 1

    def _fault(self, words: str) -> UsageError:
        at = self._tokens[min(self._at, len(self._tokens) - 1)][1] if self._tokens else 0
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        return UsageError(f"not valid Protobuf: line {line}, column {column}", why=words)
