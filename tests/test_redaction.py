from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_memory.redaction import redact

MEGABYTE = 1_000_000

# Put together here, so that no scanner takes this file for a leak.
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
JWT = ".".join(["eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + "zdWIiOiIxMjM0In0", "SflKxwRJSMeKKF2QT4"])
KEY_BLOCK = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow+/=\nIBAAKC\n-----END RSA " + "PRIVATE KEY-----"
SECRETS = [
    ("aws access key", "AKIA" + "IOSFODNN7EXAMPLE"),
    ("aws access key", "ASIA" + "IOSFODNN7EXAMPLE"),
    ("github token", "ghp_" + LETTERS),
    ("github token", "gho_" + LETTERS),
    ("github token", "github_pat_" + "11ABCDEFG0_" + LETTERS),
    ("gitlab token", "glpat-" + LETTERS[:20]),
    ("slack token", "xoxb-" + "123456789012-" + LETTERS),
    ("slack token", "xapp-" + "1-A0B1C2-" + LETTERS),
    ("stripe key", "sk_" + "live_" + LETTERS),
    ("stripe key", "rk_" + "live_" + LETTERS),
    ("anthropic key", "sk-ant-" + "api03-" + LETTERS + "-_AA"),
    ("api key", "sk-" + LETTERS),
    ("api key", "sk-proj-" + "ab_c-" + LETTERS),
    ("api key", "sk-or-v1-" + LETTERS),
    ("google api key", "AIza" + "Sy" + LETTERS[:33]),
    ("pypi token", "pypi-" + "AgEIcHlwaS5vcmc" + LETTERS),
    ("npm token", "npm_" + LETTERS),
    ("jwt", JWT),
    ("private key", KEY_BLOCK),
    ("private key", KEY_BLOCK.replace("RSA ", "")),
    ("private key", KEY_BLOCK.replace("\n", "\\n")),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Plan <private>pin 5521</private> for June", "Plan [private] for June"),
        ("a <PRIVATE>b</Private> c", "a [private] c"),
        ("a <private>b\nc\n</private> d", "a [private] d"),
        ('a <private reason="pin">b</ private > c', "a [private] c"),
        ("a <private>b <private>c</private> d</private> e", "a [private] e"),
        ("a <private>b", "a [private]"),
        ("a <private>b <private>c</private> d", "a [private]"),
        ("<private></private>", "[private]"),
        ("密码<private>五五二一</private>保密", "密码[private]保密"),
    ],
)
def test_a_private_part_is_hidden(text: str, expected: str) -> None:
    assert redact(text) == (expected, ["private part"])


def test_each_private_part_is_counted() -> None:
    assert redact("<private>1</private> and <private>2") == ("[private] and [private]", ["private part"] * 2)


@pytest.mark.parametrize("text", ["a </private> b", "a private <matter>", "<privateer> sails", "<private"])
def test_what_is_no_private_tag_stays(text: str) -> None:
    assert redact(text) == (text, [])


@pytest.mark.parametrize(("name", "secret"), SECRETS)
@pytest.mark.parametrize("frame", ["{}", "the key is {}, keep it", 'KEY="{}"', "密钥是{}。", "line\n{}\nline"])
def test_a_known_secret_is_replaced_by_its_name(name: str, secret: str, frame: str) -> None:
    assert redact(frame.format(secret)) == (frame.format(f"[secret: {name}]"), [name])


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        (
            "curl -H 'Authorization: Bearer xyz' there",
            "curl -H 'Authorization: Bearer [secret: authorization header]' there",
            "authorization header",
        ),
        (
            '{"authorization": "Basic dXNlcjpwYXNz"}',
            '{"authorization": "Basic [secret: authorization header]"}',
            "authorization header",
        ),
        (
            f"AUTHORIZATION: bearer {JWT}",
            "AUTHORIZATION: bearer [secret: jwt]",
            "jwt",
        ),
        (
            "postgres://ines:s3cret@db.test:5432/x",
            "postgres://ines:[secret: url password]@db.test:5432/x",
            "url password",
        ),
        ("redis://:p@ss:w#rd@cache", "redis://:[secret: url password]@cache", "url password"),
        (
            "AWS_SECRET_ACCESS_KEY=" + "wJalrXUtnFEMI/K7MDENG" + "/bPxRfiCYEXAMPLEKEY",
            "AWS_SECRET_ACCESS_KEY=[secret: aws secret key]",
            "aws secret key",
        ),
    ],
)
def test_a_secret_known_by_its_place_leaves_the_place(text: str, expected: str, name: str) -> None:
    assert redact(text) == (expected, [name])


def test_a_key_block_without_its_end_hides_the_rest() -> None:
    cut = KEY_BLOCK[: KEY_BLOCK.index("-----END")]
    assert redact(f"here: {cut}") == ("here: [secret: private key]", ["private key"])


def test_a_token_in_the_place_of_a_user_name_is_hidden_too() -> None:
    token = "ghp_" + LETTERS
    cleaned, names = redact(f"https://{token}:x-oauth@git.test/x")
    assert cleaned == "https://[secret: github token]:[secret: url password]@git.test/x"
    assert names == ["github token", "url password"]


def test_names_come_in_the_order_of_the_text() -> None:
    text = f"npm_{LETTERS} <private>x</private> AKIAIOSFODNN7EXAMPLE <private>{JWT}</private>"
    cleaned, names = redact(text)
    assert cleaned == "[secret: npm token] [private] [secret: aws access key] [private]"
    assert names == ["npm token", "private part", "aws access key", "private part"]


def test_a_private_part_inside_a_key_block_does_not_cut_it_short() -> None:
    text = KEY_BLOCK.replace("IBAAKC", "<private>IBAAKC</private>\nrest")
    assert redact(f"{text} after")[0] == "[secret: private key] after"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I'd like a window seat, please. 我叫张三。",
        "The task-management-system-for-everyone is at risk-assessment-of-everything",
        "sk-fading-circle-container and sk-learn",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "uuid 123e4567-e89b-12d3-a456-426614174000, base64 aGVsbG8gd29ybGQgaGVsbG8gd29ybGQ=",
        "write to ines@pottery.test or see http://localhost:8080/docs",
        "http://localhost:8080?mail=ines@pottery.test",
        "see http://localhost:8080，联系ines@pottery.test",
        'hosts: {"url": "http://h:80", "mail": "a@b.test"}',
        "Authorization is needed, said the bearer of bad news",
        "ASIA and the Pacific; eyJust kidding.eyJ.x",
        "the public one: -----BEGIN PUBLIC KEY-----",
        "ghp_short npm_install pypi-publish-action-for-everyone",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == (text, [])


pieces = st.lists(
    st.sampled_from(["<private>", "</private>", "Authorization: Bearer ", "x://u:", "@", " ", "\n"])
    | st.sampled_from([secret for _, secret in SECRETS])
    | st.text(max_size=5)
).map("".join)


@given(pieces)
def test_no_marked_part_and_no_framed_secret_is_left(noise: str) -> None:
    pin = "pin 5521 for the safe"
    cleaned, names = redact(f"{noise} <private>{pin}</private> {SECRETS[2][1]} ")
    assert pin not in cleaned
    assert SECRETS[2][1] not in cleaned
    assert names


@given(st.text(st.characters(exclude_characters="<:-_")))
def test_text_without_a_mark_is_never_changed(text: str) -> None:
    if not {"akia", "asia", "aiza", "eyj"} & {text.lower()[i : i + 4].rstrip() for i in range(len(text))}:
        assert redact(text) == (text, [])


@pytest.mark.parametrize(
    "unit",
    [
        "<private>",
        "<private>x</private>",
        "<private ",
        "< ",
        "<",
        "eyJ",
        "eyJaaaaaaaa.",
        "eyJaaaaaaaa.xyz.",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY",
        "-----BEGIN A PRIVATE KEY----- -----END ",
        "://",
        "://a:",
        "a:",
        "://a:b@",
        "authorization: bearer ",
        "authorization:  ",
        "aws_secret_access_key=",
        "aws_secret_access_key=" + "a" * 41,
        "sk-",
        "sk-a-",
        "ghp_",
        "xoxb-",
        "AKIA",
        "glpat-",
        "a.b",
        "\0",
    ],
)
def test_a_megabyte_of_anything_comes_back(unit: str) -> None:
    text = f"<private {unit * (MEGABYTE // len(unit))} eyJ ://x:"
    cleaned, names = redact(text)
    assert (cleaned == text) == (not names)
