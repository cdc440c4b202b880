from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autodial.deploy import addresses
from autodial.errors import InputError, WorkError

pytest.importorskip("fsspec")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("s3://bucket/a.png", True), ("gs://b", True), ("memory://a", True), ("git+ssh://h/x", True)),
        *(("file:///a.png", False), ("a.png", False), ("C:\\a.png", False), ("C://a.png", False), ("-", False)),
        *(("photos/s3://x", False), ("", False)),
    ],
)
def test_what_an_address_is(text: str, expected: bool) -> None:
    assert addresses.is_address(text) == expected


def test_file_addresses_are_paths() -> None:
    assert addresses.local_path("file:///photos/a%20b.png") == "/photos/a%20b.png"
    assert addresses.local_path("FILE://localhost/photos/a.png") == "/photos/a.png"
    assert addresses.local_path("photos/file:///a") == "photos/file:///a"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("sftp://user:pass@host:22/a@b.png", "sftp://***@host:22/a@b.png"),
        ("ftp://user:p@ss@host/a.png", "ftp://***@host/a.png"),
        ("https://token@host/a.png", "https://***@host/a.png"),
        ("https://host/a.png?X-Amz-Signature=abc&b=2", "https://host/a.png?***"),
        ("abfs://container@account.dfs.core.windows.net/a.png", "abfs://container@account.dfs.core.windows.net/a.png"),
        ("s3://key:secret@bucket/a.png", "s3://***@bucket/a.png"),
        ("s3://bucket/what?x=1.png", "s3://bucket/what?x=1.png"),
        ("s3://bucket/?.png", "s3://bucket/?.png"),
        ("403 at https://u:p@h/a?sig=1, url='https://h/b?sig=2'", "403 at https://***@h/a?*** url='https://h/b?***'"),
    ],
)
def test_credentials_are_not_shown(address: str, expected: str) -> None:
    assert addresses.shown(address) == expected


@pytest.mark.parametrize(
    ("address", "folder", "name"),
    [
        ("https://host/photos/list.txt?path=/a/b", "https://host/photos", "list.txt"),
        ("abfs://c@h/photos/a.png?sig=1/2", "abfs://c@h/photos", "a.png"),
        ("s3://bucket/photos/what?x=1.png", "s3://bucket/photos", "what?x=1.png"),
        ("memory://photos/a/", "memory://photos/a", "a"),
    ],
)
def test_a_query_is_no_part_of_a_place_or_name(address: str, folder: str, name: str) -> None:
    assert addresses.parent(address) == folder
    assert addresses.name_of(address) == name
    assert addresses.beside(address, "b.png") == f"{folder}/b.png"


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.registry import known_implementations

    monkeypatch.setitem(known_implementations, "elsewhere", {"class": "no_such_package.Files", "err": "Install it"})
    with pytest.raises(WorkError, match=r"^elsewhere://a/b\.png: elsewhere:// needs no_such_package, which is not"):
        addresses.check_protocol("elsewhere://a/b.png")
    with pytest.raises(InputError, match="fsspec knows no protocol unheard-of: check the address"):
        addresses.check_protocol("unheard-of://a")
    with pytest.raises(InputError, match="chained"):
        addresses.check_protocol("zip://a.png::memory://b.zip")
    monkeypatch.setitem(sys.modules, "fsspec.registry", None)
    with pytest.raises(WorkError, match="an address needs fsspec, which is not installed: pip install fsspec"):
        addresses.check_protocol("never-used-before://a")


def test_a_listing_is_sorted_as_paths_are() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    for name in ("b/2.png", "a.png", "b.png", "B.png", "b/10/x.png"):
        files.pipe(f"/listing/{name}", name.encode())
    found = addresses.entries("memory://listing")
    assert [(entry.address, entry.is_folder) for entry in found] == [
        ("memory://listing/B.png", False),
        ("memory://listing/a.png", False),
        ("memory://listing/b.png", False),
        ("memory://listing/b", True),
    ]
    assert [entry.state[0] for entry in found[:3]] == [5, 5, 5]
    assert [entry.address for entry in addresses.entries("memory://listing/b/")] == [
        "memory://listing/b/10",
        "memory://listing/b/2.png",
    ]
    assert [entry.address for entry in addresses.matching("memory://listing/b/**/*.png")] == [
        "memory://listing/b/10/x.png",
        "memory://listing/b/2.png",
    ]
    assert addresses.look_at("memory://listing/nowhere") is None


def test_an_upload_is_all_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "there").write_bytes(b"old")
    addresses.upload(tmp_path / "new", f"local://{tmp_path}/there")
    assert (tmp_path / "there").read_bytes() == b"new"
    with pytest.raises(WorkError, match=r"nowhere/x: can't write: No such file or"):
        addresses.upload(tmp_path / "new", f"local://{tmp_path}/nowhere/x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "there"]
