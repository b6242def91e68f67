"""Signatures: what verifies, what does not, and that nothing ever raises."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sume_jobs.decisions.signature import sign, verify

NOW = 1_700_000_000
BODY = b'{"id": "evt_1"}'
SECRET = "whsec_one"


def signed(body: bytes = BODY, timestamp: int | str = NOW, secret: str = SECRET) -> str:
    return sign(timestamp, body, secret)


def test_a_known_signature() -> None:
    # echo -n '1700000000.{"id": "evt_1"}' | openssl dgst -sha256 -hmac whsec_one
    expected = "v1=ad6f82342e161ff43f1a4397a32b52f8e4da6b4e2a16398679d3741baaea59d5"
    assert signed() == signed(timestamp=str(NOW)) == expected
    assert verify(BODY, str(NOW), signed(), (SECRET,), NOW, 300)


@pytest.mark.parametrize(
    "header",
    [
        signed(),
        "v1=" + signed()[3:].upper(),
        f"v0=abc,{signed()}",
        f"{signed(secret='other')}, {signed()}",
        f" {signed()} ",
        f"v1=,v1=zz,,=,{signed()}",
        signed().rjust(4096),
    ],
)
def test_any_matching_part_verifies(header: str) -> None:
    assert verify(BODY, str(NOW), header, (SECRET,), NOW, 300)


@pytest.mark.parametrize("secrets", [(SECRET,), ("a", SECRET), (SECRET, "b"), ("", " ", SECRET)])
def test_every_secret_is_tried(secrets: tuple[str, ...]) -> None:
    assert verify(BODY, str(NOW), signed(), secrets, NOW, 300)


@pytest.mark.parametrize(
    ("body", "timestamp", "header", "secrets"),
    [
        (BODY, None, signed(), (SECRET,)),
        (BODY, str(NOW), None, (SECRET,)),
        (BODY, str(NOW), "", (SECRET,)),
        (BODY, str(NOW), signed(), ()),
        (BODY, str(NOW), signed(secret=""), ("",)),
        (BODY, str(NOW), signed(secret=" "), (" ",)),
        (BODY, str(NOW), signed(), ("other",)),
        (BODY + b" ", str(NOW), signed(), (SECRET,)),
        (BODY, str(NOW + 1), signed(), (SECRET,)),
        (BODY, str(NOW), signed()[:-1], (SECRET,)),
        (BODY, str(NOW), signed() + "0", (SECRET,)),
        (BODY, str(NOW), signed()[3:], (SECRET,)),
        (BODY, str(NOW), signed().replace("v1=", "v2="), (SECRET,)),
        (BODY, str(NOW), signed().replace("v1=", "V1="), (SECRET,)),
        (BODY, str(NOW), "v1=" + "ж" * 64, (SECRET,)),
        (BODY, str(NOW), "v1=\ud800", (SECRET,)),
        (BODY, str(NOW), "x" * 5000 + "," + signed(), (SECRET,)),
        (BODY, str(NOW), signed().rjust(4097), (SECRET,)),
        (BODY, f"0x{NOW:x}", signed(timestamp=f"0x{NOW:x}"), (SECRET,)),
        (BODY, f" {NOW}", signed(timestamp=f" {NOW}"), (SECRET,)),
        (BODY, f"{NOW}.0", signed(timestamp=f"{NOW}.0"), (SECRET,)),
        (BODY, "-1", signed(timestamp="-1"), (SECRET,)),
        (BODY, "", signed(timestamp=""), (SECRET,)),
        (
            BODY,
            "\u0661\u0667\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660",
            signed(timestamp="\u0661\u0667\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660"),
            (SECRET,),
        ),
        (BODY, "9" * 16, signed(timestamp="9" * 16), (SECRET,)),
        (BODY, f"{NOW}\n", signed(timestamp=f"{NOW}\n"), (SECRET,)),
    ],
)
def test_what_does_not_verify(
    body: bytes, timestamp: str | None, header: str | None, secrets: tuple[str, ...]
) -> None:
    assert not verify(body, timestamp, header, secrets, NOW, 300)


@pytest.mark.parametrize(
    ("offset", "genuine"), [(-300, True), (300, True), (-301, False), (301, False), (0, True)]
)
def test_the_window_is_closed_at_both_ends(offset: int, genuine: bool) -> None:
    stamp = str(NOW + offset)
    assert verify(BODY, stamp, signed(timestamp=stamp), (SECRET,), NOW, 300) is genuine


@given(
    st.binary(),
    st.none() | st.text(),
    st.none() | st.text() | st.text().map("v1={}".format),
    st.lists(st.text(st.characters(exclude_categories=()))),
)
@example(BODY, None, "v1=", ["\ud800"])
def test_nothing_raises_and_nothing_strange_verifies(
    body: bytes, timestamp: str | None, header: str | None, secrets: list[str]
) -> None:
    assert not verify(body, timestamp, header, secrets, NOW, 300)
    # A timestamp of digits reaches the comparison itself.
    assert not verify(body, str(NOW), header, secrets, NOW, 300)


@given(st.binary(), st.text(min_size=1).filter(str.strip), st.integers(0, 10**10))
def test_what_was_signed_verifies(body: bytes, secret: str, stamp: int) -> None:
    assert verify(body, str(stamp), sign(stamp, body, secret), (secret,), stamp, 0)
