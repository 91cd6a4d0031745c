"""Golden bytes: what version 1 of the protocol put on the wire is understood for ever.

``golden_v1.txt`` holds one line a message: its name and its bytes in hex. A line is never changed: a new
field gets a new example in messages_in_full.py and a new file of golden bytes beside the old one, whose
lines are those of the messages that grew or came.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from panal.core.errors import ProtocolError
from panal.protocol import messages
from panal.protocol.codec import Decoder, encode
from panal.protocol.messages import Message
from tests.unit.protocol.messages_in_full import IN_FULL

FOLDER = Path(__file__).parent
FILES = (
    "golden_v1.txt",
    "golden_v1_term.txt",
    "golden_v1_1.txt",
    "golden_desk.txt",
    "golden_v1_gpus.txt",
    "golden_v1_2.txt",
    "golden_v1_3.txt",
    "golden_v1_wake.txt",
)
"""Oldest first."""
EXAMPLES = {type(message).__name__: message for message in IN_FULL}


def kinds_of_messages() -> dict[str, type[Message]]:
    return {
        name: kind
        for name, kind in vars(messages).items()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    }


def lines_of(file: str) -> list[tuple[str, bytes]]:
    lines = (FOLDER / file).read_text(encoding="ascii").splitlines()
    return [(name, bytes.fromhex(text)) for name, text in (line.split(" ") for line in lines)]


def golden() -> dict[str, bytes]:
    """The newest bytes of each message."""
    return dict(line for file in FILES for line in lines_of(file))


def outgrown() -> list[tuple[str, bytes]]:
    """What earlier programs sent of messages that have grown since."""
    return [(name, raw) for file in FILES for name, raw in lines_of(file) if golden()[name] != raw]


@pytest.mark.parametrize("name", kinds_of_messages())
def test_every_message_has_golden_bytes_and_an_example(name: str) -> None:
    assert name in golden(), f"add to {FILES[-1]}: {name} {encode(EXAMPLES[name]).hex()}"
    assert name in EXAMPLES


@pytest.mark.parametrize("name", golden())
def test_golden_bytes_decode_to_the_example(name: str) -> None:
    assert Decoder(kinds_of_messages()[name]).decode(golden()[name]) == EXAMPLES[name]


@pytest.mark.parametrize(("name", "raw"), outgrown())
def test_bytes_of_earlier_programs_mean_what_they_meant(name: str, raw: bytes) -> None:
    """Every field that they had is understood, and what came since has its default, which is not sent."""
    again = encode(Decoder(kinds_of_messages()[name]).decode(raw))
    # As maps: the width of a map's head depends on how many fields a message could have.
    assert msgspec.msgpack.decode(again) == msgspec.msgpack.decode(raw)


@pytest.mark.parametrize("name", golden())
def test_the_example_encodes_to_the_golden_bytes(name: str) -> None:
    assert encode(EXAMPLES[name]).hex() == golden()[name].hex()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_sets_every_field_to_something_else_than_its_default(name: str) -> None:
    on_the_wire = msgspec.msgpack.decode(encode(EXAMPLES[name]))
    assert set(on_the_wire) == set(EXAMPLES[name].__struct_fields__)


@pytest.mark.parametrize("name", golden())
def test_fields_that_this_version_does_not_know_are_ignored(name: str) -> None:
    fields = msgspec.msgpack.decode(golden()[name])
    newer = msgspec.msgpack.encode({"a_field_of_tomorrow": {"deep": [1, None]}, **fields, "zz": b"\x00"})
    assert Decoder(kinds_of_messages()[name]).decode(newer) == EXAMPLES[name]


@pytest.mark.parametrize("name", golden())
def test_a_message_with_required_fields_only_is_understood(name: str) -> None:
    kind = kinds_of_messages()[name]
    fields = msgspec.msgpack.decode(golden()[name])
    required = {each.name for each in msgspec.structs.fields(kind) if each.required}
    least = msgspec.msgpack.encode({field: fields[field] for field in required})
    decoded = Decoder(kind).decode(least)
    assert set(msgspec.msgpack.decode(encode(decoded))) == required


@pytest.mark.parametrize("name", golden())
def test_cut_golden_bytes_are_a_protocol_error(name: str) -> None:
    whole = golden()[name]
    decoder = Decoder(kinds_of_messages()[name])
    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decoder.decode(whole[:length])


# --- whatever a message holds, it comes back ----------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf", "Zl", "Zp")), max_size=40)
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "BoolType": st.booleans(),
    "BytesType": st.binary(max_size=60),
    "NoneType": st.none(),
    "AnyType": st.none() | st.booleans() | TEXTS | st.integers(-(2**63), 2**63) | st.lists(TEXTS, max_size=2),
}


def values_of(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a field, from its type as msgspec understands it."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return st.one_of([values_of(each) for each in kind.types])
    if isinstance(kind, msgspec.inspect.ListType):
        return st.lists(values_of(kind.item_type), max_size=3)
    if isinstance(kind, msgspec.inspect.DictType):
        return st.dictionaries(values_of(kind.key_type), values_of(kind.value_type), max_size=3)
    if isinstance(kind, msgspec.inspect.StructType):
        fields = {each.name: values_of(each.type) for each in kind.fields}
        return st.builds(kind.cls, **fields)
    if isinstance(kind, msgspec.inspect.StrType):
        return WORDS if kind.pattern else TEXTS
    if isinstance(kind, msgspec.inspect.IntType):
        least, most = kind.ge, kind.le
        return st.integers(-(2**63) if least is None else least, 2**64 - 1 if most is None else most)
    if isinstance(kind, msgspec.inspect.FloatType):
        return st.floats(kind.ge, kind.le, allow_nan=False)
    return PLAIN[type(kind).__name__]


@pytest.mark.parametrize("name", kinds_of_messages())
def test_what_was_encoded_decodes_to_the_same(name: str) -> None:
    kind = kinds_of_messages()[name]
    decoder = Decoder(kind)

    @settings(max_examples=60, deadline=None)
    @given(values_of(msgspec.inspect.type_info(kind)))
    def same(message: Message) -> None:
        assert decoder.decode(encode(message)) == message

    same()


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for kind in (messages.Frames, messages.Heartbeat, messages.RunAttempt):
        try:
            Decoder(kind).decode(data)
        except ProtocolError as error:
            assert kind.__name__ in error.message
