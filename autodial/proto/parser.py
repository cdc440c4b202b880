"""Protobuf's text format read as Caffe reads it.

protobuf's own Python parser follows other rules than the C++ parser that Caffe uses: it accepts `+1`, `1_000` and any
letter after a backslash, and refuses `- 1`. Its errors name neither the layer with the mistake nor a remedy. This
parser accepts and refuses what C++ does, with every protobuf runtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from autodial.errors import InputError
from autodial.proto.schema import types_with_options
from autodial.proto.upgrade import V1_TYPES
from autodial.wording import shortened

# C++ isspace; other Unicode spaces are errors outside of strings. A number includes what directly follows it, so that
# "3px" or "1.2.3" is one bad number rather than two tokens. A string that is never closed includes the rest of its
# line: a search for the end from each quote in it would take time that grows with the square of the line's length.
_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n\v\f]|\#[^\n]*)+)
    |(?P<identifier>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>\.?[0-9](?:[eE][+-]|[A-Za-z0-9_.])*)
    |(?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')
    |(?P<unclosed>["'][^\n]*)
    |(?P<symbol>.)""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
_FLOAT = re.compile(r"(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"?": b"?", b"'": b"'", b'"': b'"',
}  # fmt: skip
_PLACEHOLDER = re.compile(r"%[A-Za-z]\w*%|\$\{\w+\}|\$[A-Za-z_]\w*")  # of templates
_CLOSER = {"{": "}", "<": ">"}
_INTEGER_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_BOOLS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}
_ROOTS = {"NetParameter": ("net", "SolverParameter"), "SolverParameter": ("solver", "NetParameter")}
_LAYER_MESSAGES = ("LayerParameter", "V1LayerParameter", "V0LayerParameter")


class _Token(NamedTuple):
    kind: str  # identifier, number, string, unclosed (string), symbol or end
    text: str
    start: int  # index of its first character


_OTHER_CAFFE = (
    "correct its name; a field that only another version of Caffe knows is not supported, and without it the net may "
    "be another one"
)


class _Block(NamedTuple):
    descriptor: Any  # of the message that the block fills
    opener: int  # index of the token that opens it
    number: int  # its place among its likes, from 1


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield _Token(str(match.lastgroup), match.group(), match.start())
    yield _Token("end", "", len(text))


def top_level_names(text: str) -> Iterator[str]:
    """The names of the outermost message's fields, enum and bool values, in order; the text need not be correct."""
    depth = 0
    for token in _tokens(text):
        if token.kind == "symbol":
            depth += (token.text in _CLOSER) - (token.text in _CLOSER.values())
        elif token.kind == "identifier" and depth == 0:
            yield token.text


class Parser:
    """Reads one text into one message."""

    def __init__(self, text: str, name: str, *, keep_unknown: bool = False) -> None:
        """`name` is what errors call the text, usually the file's path; for `keep_unknown` see read_net."""
        self._text = text
        self._name = name
        self._keep_unknown = keep_unknown
        self._tokens = list(_tokens(text))
        self._index = 0
        self._blocks: list[_Block] = []  # those around the current token, outermost first
        self._foreign: dict[int, bool] = {}  # by a layer's opener: whether its type has no options here
        self._kept: str | None = None  # the first field of the current layer that no message has, with keep_unknown

    def parse_into(self, message: Message) -> None:
        """Fill the empty `message`; an InputError names file, line, column, layer and field of the first mistake."""
        self._blocks = [_Block(message.DESCRIPTOR, -1, 1)]
        self._read_fields(message, opener=None)

    def _read_fields(self, message: Message, opener: _Token | None) -> None:
        """Read the fields up to the end of the text, or of the block that `opener` began."""
        first: dict[str, _Token] = {}
        while True:
            token = self._peek()
            if token.kind == "end":
                if opener is None:
                    return
                self._fail_open(opener)
            if token.kind == "symbol" and token.text in _CLOSER.values():
                if opener is None:
                    self._fail(token, f'this "{token.text}" closes nothing: remove it, or look above for one too many')
                self._check_closes(token, opener)
                self._take()
                return
            self._read_field(message, first)

    def _read_field(self, message: Message, first: dict[str, _Token]) -> None:
        """Read one `name: value`, `name { ... }` or `name: [value, ...]`; `first` has the singular fields so far."""
        token = self._take()
        if token.kind != "identifier":
            self._fail(token, f"a field's name must stand here, not {self._describe(token)}")
        field = message.DESCRIPTOR.fields_by_name.get(token.text)
        if field is None or field.name == "foreign_text":
            if self._is_of_foreign_layer(token):
                message.foreign_text.append(self._text[token.start : self._skip_block()])  # type: ignore[attr-defined]
                return
            if self._kept is not None:  # which is enough to refuse the layer
                self._skip_value()
                return
            problem = self._misplaced_field(token.text)
            if problem is None and self._keep_unknown and "LayerParameter" in (b.descriptor.name for b in self._blocks):
                self._kept = self._unknown_field(token.text)
                self._skip_value()
                return
            self._fail(token, problem or f"{self._unknown_field(token.text)}: {_OTHER_CAFFE}")
        repeated = not field.has_presence  # in proto2 every singular field tells presence
        if not repeated:
            before = first.setdefault(token.text, token)
            if before is not token:
                line, _ = self._line_and_column(before)
                self._fail(token, f"{token.text} is given a second time, after line {line}: remove one of them")
        if not self._accept(":") and field.message_type is None:
            self._fail(self._peek(), f'":" must follow {token.text}, not {self._describe(self._peek())}')
        if repeated and self._accept("["):
            if not self._accept("]"):
                self._read_value(message, field)
                while self._accept(","):
                    self._read_value(message, field)
                if not self._accept("]"):
                    found = self._describe(self._peek())
                    self._fail(self._peek(), f'"," or "]" must follow in the list of {token.text}, not {found}')
        else:
            self._read_value(message, field)
        _ = self._accept(";") or self._accept(",")

    def _is_of_foreign_layer(self, token: _Token) -> bool:
        """Whether a field that no message has is one of options, in a layer of a type that has no options here."""
        following = self._tokens[self._index + (self._peek().text == ":")]
        block = self._blocks[-1]
        if block.descriptor.name != "LayerParameter" or not token.text.endswith("_param"):
            return False
        if block.opener not in self._foreign:  # looked up once a layer, which may have many such options
            layer_type = self._said("type", block)
            known = types_with_options() | {each.lower() for each in V1_TYPES.values()}
            self._foreign[block.opener] = bool(layer_type) and str(layer_type).lower() not in known
        return following.text in _CLOSER and self._foreign[block.opener]

    def _skip_value(self) -> None:
        """Take the value of a field that nobody knows: a block, a list, a number, a word or strings."""
        following = self._tokens[self._index + (self._peek().text == ":")]
        if following.kind == "symbol" and following.text in _CLOSER:
            self._skip_block()
        elif not self._accept(":"):
            self._fail(following, f'":" must follow the name of a field, not {self._describe(following)}')
        elif self._accept("["):
            while not self._accept("]"):
                self._skip_scalar()
                _ = self._accept(",")
        else:
            self._skip_scalar()
        _ = self._accept(";") or self._accept(",")

    def _skip_scalar(self) -> None:
        _ = self._accept("-") or self._accept("+")
        token = self._take()
        if token.kind not in ("identifier", "number", "string"):
            self._fail(token, f"a value must stand here, not {self._describe(token)}")
        while token.kind == self._peek().kind == "string":
            self._take()

    def _skip_block(self) -> int:
        """Take a block whose fields nobody knows, down to its end; the index in the text behind it."""
        self._accept(":")
        openers: list[_Token] = []
        while True:
            token = self._take()
            if token.kind == "end":
                self._fail_open(openers[-1])
            if token.kind == "unclosed":
                self._fail(token, f"here is {self._describe(token)}")
            if token.kind != "symbol":
                continue
            if token.text in _CLOSER:
                openers.append(token)
            elif token.text in _CLOSER.values():
                self._check_closes(token, openers.pop())
                if not openers:
                    return token.start + 1

    def _read_value(self, message: Message, field: Any) -> None:
        if field.message_type is not None:
            self._read_message(message, field)
            return
        read: Callable[[Any], object] = {
            FieldDescriptor.CPPTYPE_STRING: self._read_string,
            FieldDescriptor.CPPTYPE_BOOL: self._read_bool,
            FieldDescriptor.CPPTYPE_ENUM: self._read_enum,
            FieldDescriptor.CPPTYPE_FLOAT: self._read_float,
            FieldDescriptor.CPPTYPE_DOUBLE: self._read_float,
        }.get(field.cpp_type, self._read_integer)
        value = read(field)
        if field.has_presence:
            setattr(message, field.name, value)
        else:
            getattr(message, field.name).append(value)

    def _read_message(self, message: Message, field: Any) -> None:
        opener = self._peek()
        if opener.kind != "symbol" or opener.text not in _CLOSER:
            self._fail(opener, f'"{{" must follow {field.name}, not {self._describe(opener)}')
        if field.has_presence:
            child, number = getattr(message, field.name), 1
            child.SetInParent()
        else:
            child = getattr(message, field.name).add()
            number = len(getattr(message, field.name))
        self._blocks.append(_Block(field.message_type, self._index, number))
        self._take()
        self._read_fields(child, opener)
        self._blocks.pop()
        if self._kept is not None and field.message_type.name == "LayerParameter":
            child.foreign_text.append(self._kept)
            self._kept = None

    def _read_string(self, field: Any) -> str | bytes:
        start = self._peek()
        if start.kind != "string":
            self._fail_value(field, "a string in quotes")
        pieces = []
        while self._peek().kind == "string":
            pieces.append(self._unescape(self._take(), field))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return b"".join(pieces)
        try:
            text = b"".join(pieces).decode()
        except UnicodeDecodeError:
            self._fail(start, f"the escapes in {field.name} do not give UTF-8 text")
        self._check_filled(text, start)
        return text

    def _check_filled(self, text: str, token: _Token) -> None:
        """Refuse a string with the placeholder of a template, but for `$name`, which may be part of a file's name."""
        for placeholder in _PLACEHOLDER.findall(text):
            if placeholder[0] == "%" or placeholder[1] == "{":
                self._fail(token, _template(placeholder))

    def _unescape(self, token: _Token, field: Any) -> bytes:
        def value(match: re.Match[bytes]) -> bytes:
            octal, hexadecimal, code_point, letter = match.groups()
            if octal:
                return bytes([int(octal, 8) & 0xFF])
            if hexadecimal:
                return bytes([int(hexadecimal, 16)])
            if code_point:
                return chr(int(code_point, 16)).encode(errors="surrogatepass")
            if letter not in _ESCAPED:
                escape = match.group().decode(errors="replace")
                self._fail(token, f'in {field.name}, {escape} is no escape: write "/" in paths, or "\\\\" for a "\\"')
            return _ESCAPED[letter]

        return _ESCAPE.sub(value, token.text[1:-1].encode())

    def _read_bool(self, field: Any) -> bool:
        token = self._peek()
        if token.kind == "identifier" and token.text in _BOOLS:
            self._take()
            return _BOOLS[token.text]
        if _INTEGER.fullmatch(token.text) and _integer(token.text) in (0, 1):
            self._take()
            return bool(_integer(token.text))
        self._fail_value(field, "true or false")

    def _read_enum(self, field: Any) -> int:
        values = field.enum_type.values_by_name
        token = self._peek()
        if token.kind == "identifier" and token.text in values:
            self._take()
            return int(values[token.text].number)
        if _INTEGER.fullmatch(token.text) and _integer(token.text) in field.enum_type.values_by_number:
            self._take()
            return _integer(token.text)
        names = list(values)
        if len(names) > 10:
            names = get_close_matches(token.text.strip("'\"").upper(), names, n=1) or names[:1]
            self._fail_value(field, f"a name like {names[0]}, in capitals and without quotes")
        self._fail_value(field, f"one of {', '.join(names)}, without quotes")

    def _read_float(self, field: Any) -> float:
        start = self._index
        sign = -1.0 if self._accept("-") else 1.0
        token = self._take()
        if token.kind == "number" and _FLOAT.fullmatch(token.text):
            return sign * float(token.text.rstrip("fF"))
        if token.kind == "identifier" and token.text.lower() in ("inf", "infinity", "nan"):
            return sign * float(token.text)
        self._index = start
        self._fail_value(field, "a decimal number")

    def _read_integer(self, field: Any) -> int:
        low, high = _INTEGER_RANGES[field.cpp_type]
        start = self._index
        sign = -1 if low < 0 and self._accept("-") else 1
        token = self._take()
        if _INTEGER.fullmatch(token.text) and low <= sign * _integer(token.text) <= high:
            return sign * _integer(token.text)
        self._index = start
        self._fail_value(field, f"an integer from {low} to {high}")

    def _peek(self) -> _Token:
        return self._tokens[self._index]

    def _take(self) -> _Token:
        token = self._tokens[self._index]
        if token.kind != "end":
            self._index += 1
        return token

    def _accept(self, symbol: str) -> bool:
        """Take `symbol` if it comes next; returns whether it did."""
        token = self._peek()
        if token.kind != "symbol" or token.text != symbol:
            return False
        self._index += 1
        return True

    def _check_closes(self, token: _Token, opener: _Token) -> None:
        if token.text != _CLOSER[opener.text]:
            line, _ = self._line_and_column(opener)
            self._fail(token, f'"{_CLOSER[opener.text]}" must close the "{opener.text}" of line {line}')

    def _fail_open(self, opener: _Token) -> NoReturn:
        self._fail(opener, f'this "{opener.text}" is never closed: a "{_CLOSER[opener.text]}" is missing')

    def _fail_value(self, field: Any, wanted: str) -> NoReturn:
        """Refuse the value that begins at the current token."""
        token = self._peek()
        found = self._describe(token)
        if token.kind == "symbol" and token.text in "+-":
            following = self._tokens[self._index + 1]
            found = f"{token.text}{shortened(following.text)}" if following.kind in ("number", "identifier") else found
        self._fail(token, f"{field.name} must be {wanted}, not {found}")

    def _fail(self, token: _Token, what: str) -> NoReturn:
        if token.kind == "symbol" and (placeholder := _PLACEHOLDER.match(self._text, token.start)):
            what = _template(placeholder[0])
        elif self._is_foreign():
            kind, _ = _ROOTS[self._blocks[0].descriptor.name]
            field = "layer" if kind == "net" else "net"
            raise InputError(
                f"{self._name} is not the prototxt of a {kind}: it has none of its fields, such as {field}"
            )
        line, column = self._line_and_column(token)
        raise InputError(f"{self._name}:{line}:{column}: {self._layer()}{what}")

    def _line_and_column(self, token: _Token) -> tuple[int, int]:
        """Both from 1; a tab is one column."""
        before = self._text[: token.start]
        return before.count("\n") + 1, len(before) - before.rfind("\n")

    def _layer(self) -> str:
        """The layer around the current token, for the start of an error; its name may come after the mistake."""
        layers = [block for block in self._blocks if block.descriptor.name in _LAYER_MESSAGES]
        if not layers:
            return ""
        name = self._said("name", layers[-1])
        return f"layer {layers[-1].number}, which has no name: " if name is None else f'layer "{shortened(name)}": '

    def _said(self, field: str, block: _Block) -> str | None:
        """What a block says for a field that is a string, which may come after the current token."""
        depth = 0
        for index in range(block.opener + 1, len(self._tokens) - 2):
            token, following, value = self._tokens[index : index + 3]
            if token.kind == "symbol":
                depth += (token.text in _CLOSER) - (token.text in _CLOSER.values())
            if depth < 0:
                break
            if depth == 0 and (token.text, following.text, value.kind) == (field, ":", "string"):
                return value.text[1:-1]
        return None

    @staticmethod
    def _describe(token: _Token) -> str:
        if token.kind == "end":
            return "the end of the file"
        if token.kind == "unclosed":
            return f"a string whose closing {token.text[0]} is missing on this line"
        if token.kind != "symbol":
            return shortened(token.text)
        if token.text == "\ufeff":
            return "a byte order mark: save the file without it"
        if not (token.text.isascii() and token.text.isprintable()):
            return f"the character U+{ord(token.text):04X}"
        return f'"{token.text}"'

    def _is_foreign(self) -> bool:
        """Whether the text is of another kind: no word of it, outside of blocks, is a field of a net or a solver."""
        own = self._blocks[0].descriptor
        kind, other = _ROOTS.get(own.name, ("", ""))
        if not kind:
            return False
        known = [*own.fields_by_name, *own.file.message_types_by_name[other].fields_by_name]
        return not any(
            word == name or _is_slip(word, name) for word in set(top_level_names(self._text)) for name in known
        )

    def _unknown_field(self, word: str) -> str:
        return f'{self._blocks[-1].descriptor.name} has no field "{shortened(word)}"'

    def _misplaced_field(self, word: str) -> str | None:
        """What is wrong with a field that a message does not have, if it looks like a mistake in this file."""
        *outer, block = self._blocks
        problem = self._unknown_field(word)
        if any(word in around.descriptor.fields_by_name for around in outer):
            return f'{problem}: remove it, or close the block before it with "}}"'
        if match := next(
            (name for name in block.descriptor.fields_by_name if word != name and _is_slip(word, name)), None
        ):
            return f'{problem}: did you mean "{match}"?'
        kind, other = _ROOTS.get(block.descriptor.name, ("", ""))
        if other and word in block.descriptor.file.message_types_by_name[other].fields_by_name:
            return f"{problem}, {other} has: a {kind} is expected here"
        return None


def _template(placeholder: str) -> str:
    return f"the file is a template: put a value in the place of {shortened(placeholder)}, and of all others like it"


def _is_slip(word: str, name: str) -> bool:
    """Whether `word` is `name` with a slip of the pen, rather than the name of another field.

    Forks have names that differ little and mean something else (selu_param, kernel_d), so that besides the case and
    the underscores only one part of the name may differ: by two neighbours that are swapped, by a letter that is
    doubled, or where it has five letters, by any one letter.
    """
    if word.lower().replace("_", "") == name.lower().replace("_", ""):
        return True
    parts, named = word.split("_"), name.split("_")
    differing = [pair for pair in zip(parts, named, strict=False) if pair[0] != pair[1]]
    if len(parts) != len(named) or len(differing) != 1:
        return False
    a, b = sorted(differing[0], key=len)
    start = next((i for i, letter in enumerate(a) if letter != b[i]), len(a))
    if len(a) == len(b):
        swapped = a[:start] + a[start : start + 2][::-1] + a[start + 2 :]
        return swapped == b or (
            len(a) >= 5 and a[start].isalpha() and b[start].isalpha() and a[start + 1 :] == b[start + 1 :]
        )
    letter = b[start]
    return a == b[:start] + b[start + 1 :] and (
        (start > 0 and letter == b[start - 1]) or (len(a) >= 5 and letter.isalpha())
    )


def _integer(text: str) -> int:
    """The value of an integer token: hexadecimal after 0x, octal after 0, else decimal."""
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    # int() refuses decimals of thousands of digits; thirty are beyond every range as well.
    return int(text, 8) if text[0] == "0" else int(text[:30])
